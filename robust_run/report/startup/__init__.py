"""What starts of a job were spent on: summed up, told, drawn, with advice on what would make them shorter."""
