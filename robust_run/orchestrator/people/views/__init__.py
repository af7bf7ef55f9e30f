"""What people are shown of a job of several roles: texts, screens, pages and figures, from what is known. Pure."""
