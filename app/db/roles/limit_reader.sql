-- Sessions of the role at once, in all databases of the server; those that are there stay.
alter role {reader} connection limit {connections};
