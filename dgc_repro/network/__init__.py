"""What a network costs: profiles, an alpha-beta model, and a lab of shaped links on one machine."""
