//! The config of the machine's resolver (resolv.conf(5)).
//!
//! In: a path, or the text. Out: the start of the file, the addresses of name servers.

use std::{io::Read as _, net::IpAddr, path::Path};

use crate::regular::open_regular;

/// The file.
pub const CONFIG: &str = "/etc/resolv.conf";

/// The longest file that is read.
pub const BYTES_MAX: usize = 64 * 1024;

/// As many servers resolvers use: `MAXNS` of resolv.conf(5).
pub const SERVERS_MAX: usize = 3;

/// The start of a regular file; none if there is no such file. Blocks.
pub fn read(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    open_regular(path).ok()??.take(BYTES_MAX as u64).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The addresses of name servers. Those that name an interface are left out.
pub fn name_servers(text: &str) -> impl Iterator<Item = IpAddr> {
    text.lines().filter_map(|line| server(line)?.parse().ok())
}

/// The address in a line that names a name server.
pub fn server(line: &str) -> Option<&str> {
    let mut words = line.split_ascii_whitespace();
    words.next().filter(|word| *word == "nameserver").and(words.next())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_a_regular_file_is_read_and_no_more_than_its_start() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("resolv.conf");
        assert_eq!(read(&path), None);
        assert_eq!(read(Path::new("/dev/zero")), None, "it has no end");
        fs::write(&path, "search a\n".repeat(100_000)).unwrap();
        assert_eq!(read(&path).unwrap().len(), BYTES_MAX);
        fs::write(&path, b"nameserver 192.0.2.1\n\xff\n").unwrap();
        assert_eq!(name_servers(&read(&path).unwrap()).count(), 1);
    }

    #[test]
    fn servers_are_the_addresses_of_their_lines() {
        let text = "# nameserver 192.0.2.9\n nameserver\t192.0.2.1 x\nnameserver fe80::1%eth0\nnameserver\nnameserver ::1\n";
        let servers: Vec<String> = name_servers(text).map(|ip| ip.to_string()).collect();
        assert_eq!(servers, ["192.0.2.1", "::1"]);
    }
}
