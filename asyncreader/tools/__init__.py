"""What the commands show: measurements, images, pages."""
