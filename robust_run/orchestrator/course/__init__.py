"""How full queues were and how much workers waited at them, over the life of a job: a file of bounded size beside the journal."""
