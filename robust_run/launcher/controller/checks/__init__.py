"""Node checks, the controller's side: sessions of questions to agents, and what history they are judged by."""
