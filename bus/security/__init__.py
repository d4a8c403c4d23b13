"""Access control of the bus: users, keys, certificates, accounts and signatures."""
