"""The arena: every way of far memory on the same programs, in the same kind of guest, compared at equal time lost."""
