"""Files and streams of metrics, read row by row: nothing is believed, little is kept."""
