"""Work of many prompts on several devices or machines, by Ray (extra `ray`)."""
