//! Tests of launch specs: every field arrives, and bad ones are refused.

use super::*;

fn all_fields() -> Vec<Field<'static>> {
    vec![
        Field::Record(b"a.1"),
        Field::Program(b"/bin/sh"),
        Field::Argument(b"sh"),
        Field::Argument(b""),
        Field::Variable(b"A=1"),
        Field::Variable(b"B="),
        Field::Directory(b"/tmp"),
        Field::User { uid: 7, gid: 8 },
        Field::Group(9),
        Field::Group(10),
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
        Field::Entry(b"sh"),
        Field::Driver(7),
        Field::Network(b"/run/netns/a"),
        Field::Namespaces(CREATED),
        Field::MountNamespace,
        Field::Proc,
        Field::ReadOnlyProc(b"sys"),
        Field::ReadOnlyProc(b"bus"),
        Field::MaskedProc(b"kcore"),
        Field::MessageQueues,
        Field::Hostname(b"web"),
        Field::Capabilities(SETS),
        Field::Init,
        Field::CallFilter(&[1; 16]),
        Field::CallFilter(&[2; 8]),
        Field::Limit { resource: 7, soft: 1, hard: u64::MAX },
        Field::Setting(b"net/ipv4/ip_forward=1"),
        Field::Cgroups,
        Field::WritableCgroups,
        Field::Input,
    ]
}

const CREATED: Namespaces = Namespaces::CREATED;

const SETS: Capabilities =
    Capabilities { bounding: 1 << 40, effective: 2, inheritable: 6, permitted: 7, ambient: 4 };

fn blob(fields: &[Field<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    encode(fields.iter().copied(), &mut out).unwrap();
    out
}

#[test]
fn every_field_arrives() {
    let blob = blob(&all_fields());
    let spec = Spec::decode(&blob).unwrap();
    assert_eq!(spec.record, Some(c"a.1"));
    assert_eq!(Spec::record_name(&blob), Some(c"a.1"));
    assert_eq!(spec.program, c"/bin/sh");
    assert_eq!(spec.arguments().collect::<Vec<_>>(), [c"sh", c""]);
    assert_eq!(spec.variables().collect::<Vec<_>>(), [c"A=1", c"B="]);
    assert_eq!(spec.tasks_files().collect::<Vec<_>>(), [c"/sys/fs/cgroup/cpu/x/tasks"]);
    assert_eq!(spec.groups().collect::<Vec<_>>(), [9, 10]);
    assert_eq!(spec.directory, Some(c"/tmp"));
    assert_eq!(spec.user, Some((7, 8)));
    assert_eq!((spec.umask, spec.open_files, spec.oom_score_adj), (0o27, Some(1024), Some(-5)));
    assert_eq!(spec.cgroup, Some(c"/sys/fs/cgroup/x"));
    assert_eq!((spec.stdout, spec.stderr), (Some(c"web.stdout"), Some(c"web.stderr")));
    assert_eq!((spec.log_files, spec.log_file_size), (3, 1 << 20));
    assert!(spec.no_new_privs && spec.log_block && spec.leash && spec.terminal);
    assert_eq!((spec.entry, spec.network), (Some(c"sh"), Some(c"/run/netns/a")));
    assert_eq!(spec.namespaces.flags(), CREATED.flags());
    assert_eq!(spec.call_filters().collect::<Vec<_>>(), [&[1; 16][..], &[2; 8]]);
    assert_eq!(spec.limits().collect::<Vec<_>>(), [(7, [1, u64::MAX])]);
    assert_eq!(spec.settings().collect::<Vec<_>>(), [(&b"net/ipv4/ip_forward"[..], &b"1"[..])]);
    assert!(spec.cgroups);
    assert!(spec.mount_namespace && spec.proc && spec.message_queues && spec.init);
    assert_eq!(spec.read_only_proc().collect::<Vec<_>>(), [c"sys", c"bus"]);
    assert_eq!(spec.masked_proc().collect::<Vec<_>>(), [c"kcore"]);
    assert_eq!((spec.hostname, spec.capabilities), (Some(c"web"), Some(SETS)));
}

#[test]
fn sessions_join_and_do_not_create() {
    let minimal = [Field::Program(b"/x"), Field::Argument(b"x")];
    let with = |fields: &[Field<'static>]| {
        let blob = blob(&[&minimal[..], fields].concat());
        Spec::decode(&blob).map(|spec| spec.join)
    };
    let joined = Namespaces::MOUNT | Namespaces::PID | Namespaces::NETWORK;
    assert_eq!(with(&[Field::Join(joined)]), Ok(Some(joined)));
    let created = [Field::Namespaces(Namespaces::PID), Field::MountNamespace, Field::Init];
    for field in created {
        assert_eq!(with(&[Field::Join(joined), field]), Err(SpecError::Value(33)), "{field:?}");
    }
    assert_eq!(with(&[Field::Namespaces(Namespaces::MOUNT)]), Err(SpecError::Value(24)));
}

/// Such a spec would rename the machine, or mount over its directories.
#[test]
fn changes_of_the_machines_own_namespaces_are_refused() {
    let minimal = [Field::Program(b"/x"), Field::Argument(b"x")];
    let with = |fields: &[Field<'static>]| Spec::decode(&blob(&[&minimal[..], fields].concat())).map(|_| ());
    let all = Namespaces::PID | Namespaces::UTS | Namespaces::IPC;
    let hostname = Field::Hostname(b"web");
    let without = Field::Namespaces(all.without(Namespaces::UTS));
    assert_eq!(with(&[hostname, without, Field::MountNamespace]), Err(SpecError::Missing(24)));
    assert_eq!(with(&[hostname, Field::Namespaces(Namespaces::UTS)]), Ok(()));
    // In mounts of the task's own, /proc of the machine's processes can be mounted.
    assert_eq!(with(&[Field::Proc, Field::MessageQueues, Field::MountNamespace]), Ok(()));
    assert_eq!(with(&[Field::Proc, Field::Namespaces(all)]), Err(SpecError::Missing(25)));
    assert_eq!(with(&[Field::MessageQueues, Field::Namespaces(all)]), Err(SpecError::Missing(25)));
    assert_eq!(with(&[Field::MaskedProc(b"/etc")]), Err(SpecError::Value(28)));
    assert_eq!(with(&[Field::ReadOnlyProc(b"")]), Err(SpecError::Value(27)));
    let inconsistent = Capabilities { effective: 8, ..SETS };
    assert_eq!(with(&[Field::Capabilities(inconsistent)]), Err(SpecError::Value(31)));
    let ambient = Capabilities { ambient: 1, ..SETS };
    assert_eq!(with(&[Field::Capabilities(ambient)]), Err(SpecError::Value(31)));
}

#[test]
fn a_cut_or_damaged_blob_is_an_error_and_never_a_panic() {
    let whole = blob(&all_fields());
    for len in 0..whole.len() {
        assert!(Spec::decode(&whole[..len]).is_err(), "cut at {len}");
    }
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << bit;
            let _ = Spec::decode(&damaged);
            let _ = Spec::record_name(&damaged);
        }
    }
    let mut longer = whole;
    longer.push(0);
    assert_eq!(Spec::decode(&longer).err(), Some(SpecError::Truncated));
}

#[test]
fn bad_fields_are_refused() {
    let minimal = [Field::Program(b"/x"), Field::Argument(b"x")];
    assert!(Spec::decode(&blob(&minimal)).is_ok());
    let with = |field| Spec::decode(&blob(&[minimal[0], minimal[1], field])).err();
    assert_eq!(with(Field::Program(b"/y")), Some(SpecError::Value(2)), "twice");
    assert_eq!(with(Field::Stdout(b"../x")), Some(SpecError::Value(14)));
    assert_eq!(with(Field::Stdout(b"..")), Some(SpecError::Value(14)));
    assert_eq!(with(Field::Stdout(&[b'x'; 241])), Some(SpecError::Value(14)));
    assert_eq!(with(Field::LogFiles(0)), Some(SpecError::Value(16)));
    assert_eq!(with(Field::Entry(b"a/b")), Some(SpecError::Value(21)));
    assert_eq!(with(Field::Umask(0o1000)), Some(SpecError::Value(8)));
    assert_eq!(with(Field::OomScoreAdj(1001)), Some(SpecError::Value(10)));
    assert_eq!(Spec::decode(&blob(&minimal[..1])).err(), Some(SpecError::Missing(3)));
    // A flag with a value counted as not set, and no_new_privs was silently lost.
    let mut flag = blob(&[minimal[0], minimal[1], Field::NoNewPrivs]);
    let at = flag.len() - 2 * HEADER_LEN;
    flag[at + 2] = 1;
    flag.insert(at + HEADER_LEN, 0);
    assert_eq!(Spec::decode(&flag).err(), Some(SpecError::Value(11)));
    let mut out = Vec::new();
    assert_eq!(encode([Field::Argument(b"a\0b")], &mut out), Err(SpecError::Value(3)));
    assert!(SpecError::Value(4).to_string().starts_with("accept a variable of the environment ("));
    let large = vec![b'x'; SPEC_LEN_MAX];
    assert_eq!(encode([Field::Argument(&large)], &mut out), Err(SpecError::TooLong));
}
