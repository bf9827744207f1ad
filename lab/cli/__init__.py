"""Tests of the command line: every command with what users and scripts give it by mistake."""
