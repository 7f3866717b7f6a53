"""What Haulage is about, free of databases, processes and HTTP: values, transitions, errors."""
