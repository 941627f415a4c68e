# one
// two
/* three
   * four */ region = "a" /**/ datacenter="b"#five
client{enabled=true,servers=["a","b",],}
