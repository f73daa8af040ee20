"""Files on web servers, in object stores and on the Hugging Face Hub."""
