"""What every part uses: errors, memory limits, disk, progress, threads.

Knows nothing of tables, trees or samples.
"""
