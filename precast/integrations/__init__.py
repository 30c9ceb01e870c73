"""Names that other libraries have to know before they let precast in. Imported by those who want them only."""
