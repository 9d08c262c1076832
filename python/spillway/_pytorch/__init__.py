"""What ties the library into PyTorch: install() with all that it needs, and what a program says about itself.

What depends on PyTorch's release is in releases.py alone. Stands on the package's own modules at the top that know
no PyTorch; knows neither what leaves the device nor traces of models.
"""
