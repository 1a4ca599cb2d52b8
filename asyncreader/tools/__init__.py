"""What the commands show: measurements, pictures, pages."""
