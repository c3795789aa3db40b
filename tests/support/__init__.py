"""What tests of several folders share, and benches with them."""
