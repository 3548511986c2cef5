"""One file per client library of SQL databases, imported only when its library is used."""
