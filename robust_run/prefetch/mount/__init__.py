"""Making a file system of an image: which way is taken and why no better one, and those that are no mount of ours."""
