"""Work of the application that is longer than a stage: training sessions, mining, tuning of RM3, the path of `auto`."""
