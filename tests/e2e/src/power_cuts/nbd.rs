//! The subset of the network block device protocol that qemu needs to use a [`Disk`]
//! (<https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>).
//!
//! In: a listening socket and a disk. Out: serves one client at a time until it disconnects, and counts them.
//! Requests are answered in order; a flush covers all earlier writes. A disk whose power has failed does not
//! answer.

use std::{
    io::{self, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use super::disk::{Ask, Disk};

/// `NBD_FLAG_FIXED_NEWSTYLE` and `NBD_FLAG_NO_ZEROES`.
const HANDSHAKE_FLAGS: u16 = 3;
/// `NBD_FLAG_HAS_FLAGS` and `NBD_FLAG_SEND_FLUSH`: without the latter, qemu would not flush.
const EXPORT_FLAGS: u16 = 5;
const OPTION_MAGIC: &[u8; 8] = b"IHAVEOPT";
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const REPLY_UNSUPPORTED: u32 = 0x8000_0001;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
/// Maximum length of a read or write.
const LEN_MAX: usize = 64 << 20;

/// Serves clients until the listener fails; `gone` counts those that have disconnected.
pub fn serve(listener: &UnixListener, disk: &Mutex<Disk>, gone: &AtomicU64) {
    for client in listener.incoming() {
        let Ok(mut client) = client else { return };
        // A killed client may disconnect in the middle of a message.
        if let Err(error) = talk(&mut client, disk)
            && !matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe)
        {
            eprintln!("the disk's client: {error}");
        }
        gone.fetch_add(1, Ordering::SeqCst);
    }
}

fn talk(client: &mut UnixStream, disk: &Mutex<Disk>) -> io::Result<()> {
    agree(client, disk.lock().unwrap_or_else(PoisonError::into_inner).len())?;
    let mut bytes = Vec::new();
    loop {
        let magic = u32::from_be_bytes(take(client)?);
        let _flags = u16::from_be_bytes(take(client)?);
        let command = u16::from_be_bytes(take(client)?);
        let handle: [u8; 8] = take(client)?;
        let offset = u64::from_be_bytes(take(client)?);
        let len = u32::from_be_bytes(take(client)?) as usize;
        if magic != REQUEST_MAGIC || len > LEN_MAX {
            return Err(io::Error::other(format!("not a request: magic {magic:x}, {len} bytes")));
        }
        bytes.clear();
        if matches!(command, READ | WRITE) {
            bytes.resize(len, 0);
        }
        if command == WRITE {
            client.read_exact(&mut bytes)?;
        }
        let mut disk = disk.lock().unwrap_or_else(PoisonError::into_inner);
        if !disk.does(if command == READ { Ask::Read } else { Ask::Change }) {
            continue;
        }
        match command {
            READ => disk.read(offset, &mut bytes)?,
            WRITE => {
                disk.write(offset, &bytes)?;
                bytes.clear();
            }
            DISCONNECT => return Ok(()),
            FLUSH => disk.flush()?,
            other => return Err(io::Error::other(format!("command {other} was not offered"))),
        }
        drop(disk);
        let mut reply = REPLY_MAGIC.to_be_bytes().to_vec();
        reply.extend(0_u32.to_be_bytes());
        reply.extend(handle);
        reply.append(&mut bytes);
        client.write_all(&reply)?;
    }
}

/// Does the handshake; supports only the option that starts the transmission.
fn agree(client: &mut UnixStream, disk_len: u64) -> io::Result<()> {
    client.write_all(b"NBDMAGICIHAVEOPT")?;
    client.write_all(&HANDSHAKE_FLAGS.to_be_bytes())?;
    let _flags: [u8; 4] = take(client)?;
    loop {
        let magic: [u8; 8] = take(client)?;
        let option = u32::from_be_bytes(take(client)?);
        let len = u32::from_be_bytes(take(client)?) as usize;
        if magic != *OPTION_MAGIC || len > LEN_MAX {
            return Err(io::Error::other("no option"));
        }
        client.read_exact(&mut vec![0; len])?;
        let mut reply = |kind: u32, bytes: &[u8]| {
            let mut text = OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
            text.extend(option.to_be_bytes());
            text.extend(kind.to_be_bytes());
            text.extend(u32::try_from(bytes.len()).unwrap_or(0).to_be_bytes());
            text.extend(bytes);
            client.write_all(&text)
        };
        if option == OPTION_GO {
            // NBD_INFO_EXPORT
            let mut export = 0_u16.to_be_bytes().to_vec();
            export.extend(disk_len.to_be_bytes());
            export.extend(EXPORT_FLAGS.to_be_bytes());
            reply(REPLY_INFO, &export)?;
            return reply(REPLY_ACK, &[]);
        }
        reply(REPLY_UNSUPPORTED, &[])?;
    }
}

fn take<const LEN: usize>(client: &mut UnixStream) -> io::Result<[u8; LEN]> {
    let mut bytes = [0; LEN];
    client.read_exact(&mut bytes)?;
    Ok(bytes)
}
