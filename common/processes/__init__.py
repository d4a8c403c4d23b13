"""Processes of Linux: started, ended and measured."""
