"""What commands write: files that are whole or not there, and tables that fit the terminal."""
