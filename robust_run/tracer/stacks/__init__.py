"""What stacks say: parsed, made comparable, judged for work, and clustered over ranks. Pure functions of text and sights."""
