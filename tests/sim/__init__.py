"""Tests in virtual time: stories, seeds, the truth of gap records, and the judges themselves."""
