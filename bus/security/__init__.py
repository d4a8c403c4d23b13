"""Who may do what on the bus: users, keys, certificates, accounts and signatures."""
