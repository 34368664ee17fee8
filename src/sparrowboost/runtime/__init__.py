"""What all other packages use.

    budget.py     the memory plan: how a memory limit is divided
    memory.py     memory limits, and what the process holds
    threads.py    work over threads, in bounded memory
    disk.py       paths of output, checks of free space, and files that are written completely or
                  not at all
    progress.py   progress bars and log lines
    random_state.py  one seed from anything that scikit-learn accepts
    errors.py     all errors that Sparrow raises on purpose

It knows nothing of tables, trees or samples.
"""
