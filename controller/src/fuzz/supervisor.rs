//! Data between agent and supervisor: the record of an attempt, and the launch specification. The first byte selects
//! which.

use herdlet_shim::{
    isolation::{Capabilities, Namespaces},
    record::{Core, Exit, Process, RECORD_LEN, Record, State, Step, start_ticks},
    spec::{Field, SPEC_LEN_MAX, Spec, encode},
};

pub(super) fn feed(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else { return };
    match kind % 4 {
        0 => record(data),
        1 => record(&summed(data)),
        2 => spec(data),
        _ => stat(data),
    }
}

/// A record that can be read is the same when written again.
fn record(data: &[u8]) {
    let Ok(record) = Record::from_bytes(data) else { return };
    let written = record.to_bytes();
    assert_eq!(Record::from_bytes(&written), Ok(record));
    let ends = matches!(record.state, State::Exited(_) | State::StartFailed { .. } | State::Tombstone);
    assert_eq!(record.is_final(), ends);
}

/// The bytes of a record with a valid magic and checksum, so that the rest is parsed.
fn summed(data: &[u8]) -> [u8; RECORD_LEN] {
    let mut bytes = Record::claimed().to_bytes();
    let len = data.len().min(52);
    bytes[4..4 + len].copy_from_slice(&data[..len]);
    let sum = bytes[..56].iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    bytes[56..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// A specification that can be read stays within its bounds, and is the same when written again.
fn spec(blob: &[u8]) {
    let name = Spec::record_name(blob);
    let Ok(spec) = Spec::decode(blob) else { return };
    assert!(blob.len() <= SPEC_LEN_MAX);
    if let Some(name) = name {
        assert_eq!(spec.record, Some(name), "the name is also read if the rest is invalid");
    }
    for name in [spec.record, spec.stdout, spec.stderr].into_iter().flatten() {
        let name = name.to_bytes();
        assert!(!name.is_empty() && name != b"." && name != b".." && !name.contains(&b'/'), "{name:?}");
    }
    assert!(spec.umask <= 0o777 && spec.log_files > 0 && spec.log_file_size > 0);
    let fields = fields(&spec);
    let mut written = Vec::new();
    encode(fields.iter().copied(), &mut written).unwrap();
    let again = Spec::decode(&written).unwrap();
    assert_eq!(self::fields(&again), fields);
}

fn fields<'a>(spec: &Spec<'a>) -> Vec<Field<'a>> {
    let mut fields = Vec::new();
    fields.extend(spec.record.map(|name| Field::Record(name.to_bytes())));
    fields.push(Field::Program(spec.program.to_bytes()));
    fields.extend(spec.arguments().map(|text| Field::Argument(text.to_bytes())));
    fields.extend(spec.variables().map(|text| Field::Variable(text.to_bytes())));
    fields.extend(spec.directory.map(|path| Field::Directory(path.to_bytes())));
    fields.extend(spec.user.map(|(uid, gid)| Field::User { uid, gid }));
    fields.extend(spec.groups().map(Field::Group));
    fields.push(Field::Umask(spec.umask));
    fields.extend(spec.open_files.map(Field::OpenFiles));
    fields.extend(spec.oom_score_adj.map(Field::OomScoreAdj));
    fields.extend(spec.cgroup.map(|path| Field::Cgroup(path.to_bytes())));
    fields.extend(spec.tasks_files().map(|path| Field::TasksFile(path.to_bytes())));
    fields.extend(spec.network.map(|path| Field::Network(path.to_bytes())));
    fields.extend(spec.hostname.map(|name| Field::Hostname(name.to_bytes())));
    fields.extend(spec.capabilities.map(Field::Capabilities));
    fields.extend(spec.join.map(Field::Join));
    if spec.namespaces != Namespaces::default() {
        fields.push(Field::Namespaces(spec.namespaces));
    }
    fields.extend(spec.read_only_proc().map(|path| Field::ReadOnlyProc(path.to_bytes())));
    fields.extend(spec.masked_proc().map(|path| Field::MaskedProc(path.to_bytes())));
    fields.extend(spec.stdout.map(|stem| Field::Stdout(stem.to_bytes())));
    fields.extend(spec.stderr.map(|stem| Field::Stderr(stem.to_bytes())));
    fields.extend([Field::LogFiles(spec.log_files), Field::LogFileSize(spec.log_file_size)]);
    let flags = [
        (spec.no_new_privs, Field::NoNewPrivs),
        (spec.log_block, Field::LogBlock),
        (spec.leash, Field::Leash),
        (spec.terminal, Field::Terminal),
        (spec.mount_namespace, Field::MountNamespace),
        (spec.proc, Field::Proc),
        (spec.message_queues, Field::MessageQueues),
        (spec.init, Field::Init),
    ];
    fields.extend(flags.into_iter().filter_map(|(set, field)| set.then_some(field)));
    fields
}

/// A process can choose any name; the parser must find what follows the name.
fn stat(data: &[u8]) {
    let _ = start_ticks(data);
    let stat = [b"77 (", data, b") S 1 77 77 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 123456 1 2 3\n"].concat();
    assert_eq!(start_ticks(&stat), Some(123_456));
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let exit = Exit { code: 3, signal: 9, core: Core::Dumped, at_unix_ns: 1_700_000_000_000_000_001 };
    let states = [
        State::Created,
        State::Running,
        State::Exited(exit),
        State::StartFailed { step: Step::Exec, errno: 2, at_unix_ns: 5 },
        State::Tombstone,
    ];
    let process = Process { pid: 4321, start_ticks: 987_654_321 };
    let mut seeds = Vec::new();
    for state in states {
        let bytes = Record { state, shim: process, task: process, dropped_bytes: 17, driver: 1 }.to_bytes();
        seeds.push([&[0], &bytes[..]].concat());
        seeds.push([&[1], &bytes[4..56]].concat());
    }
    let minimal = [Field::Program(b"/x"), Field::Argument(b"x")];
    let whole = [
        Field::Record(b"a.1"),
        Field::Program(b"/bin/sh"),
        Field::Argument(b"sh"),
        Field::Argument(b""),
        Field::Variable(b"A=1"),
        Field::Directory(b"/tmp"),
        Field::User { uid: 7, gid: 8 },
        Field::Group(9),
        Field::Umask(0o27),
        Field::OpenFiles(1024),
        Field::OomScoreAdj(-5),
        Field::NoNewPrivs,
        Field::Cgroup(b"/sys/fs/cgroup/x"),
        Field::TasksFile(b"/sys/fs/cgroup/cpu/x/tasks"),
        Field::Stdout(b"web.stdout"),
        Field::Stderr(b"web.stderr"),
        Field::LogFiles(3),
        Field::LogFileSize(1 << 20),
        Field::LogBlock,
        Field::Leash,
        Field::Terminal,
        Field::Driver(7),
        Field::Network(b"/run/netns/a"),
        Field::Namespaces(Namespaces::PID | Namespaces::UTS | Namespaces::IPC),
        Field::MountNamespace,
        Field::Proc,
        Field::ReadOnlyProc(b"sys"),
        Field::MaskedProc(b"kcore"),
        Field::MessageQueues,
        Field::Hostname(b"web"),
        Field::Capabilities(Capabilities {
            bounding: 15,
            effective: 2,
            inheritable: 6,
            permitted: 7,
            ambient: 4,
        }),
        Field::Init,
    ];
    let joining = [minimal[0], minimal[1], Field::Join(Namespaces::MOUNT | Namespaces::PID)];
    for fields in [&minimal[..], &whole[..], &joining[..]] {
        let mut blob = vec![2];
        encode(fields.iter().copied(), &mut blob).unwrap();
        seeds.push(blob);
    }
    seeds.push(b"\x0377 (a) R 1 (x) S 1 77 77 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 99 1 2 3\n".to_vec());
    seeds
}
