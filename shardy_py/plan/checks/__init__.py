"""What a plan's reader should know: one file per idea, all of them in `table.KINDS`."""
