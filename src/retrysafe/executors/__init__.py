"""How one client library is asked: one small module each, imported only when its library is used."""
