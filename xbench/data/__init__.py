"""LightningDataModules: one per dataset, each reading the official download as it is."""
