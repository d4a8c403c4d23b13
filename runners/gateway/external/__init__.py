"""Model calls answered by endpoints outside the fleet."""
