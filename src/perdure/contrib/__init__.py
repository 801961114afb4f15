"""perdure beside other libraries."""
