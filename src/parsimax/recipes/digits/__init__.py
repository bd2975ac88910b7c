"""Handwritten digits by a small network whose output is any mapping: sparse ones say which digits are impossible."""
