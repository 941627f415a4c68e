//! The Task API under attack: by another user of the machine, by tasks of other users in the same and in another
//! allocation, by a task that plants files in place of its socket, guesses tokens, or floods its socket.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::{
        fs::{FileTypeExt as _, MetadataExt as _, symlink},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
};

use herdlet_e2e::{
    agent::Agent,
    command::{self, Running, User},
    home,
    http::{self, Peer},
    wait,
};
use jsonwebtoken::{Algorithm, Header};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    common::{TOKEN, is_root, job, on_loopback, shell, sleeper},
    task_api::{IDENTITY, secrets, status, token},
};

const NOBODY: u32 = 65534;

fn of_user(name: &str, user: &str) -> String {
    sleeper(name, &format!("user: {user}\n{IDENTITY}"))
}

fn alloc(agent: &Agent, job: &str, task: &str) -> String {
    agent.until_alloc(&format!("{job}.g[0]"), "runs", |alloc| alloc.state(task) == "running").id()
}

/// The secrets of task `t` of a job, and their token.
fn victim(agent: &Agent, job: &str) -> (PathBuf, String) {
    let dir = secrets(agent, &alloc(agent, job, "t"), "t");
    let token = token(&dir);
    (dir, token)
}

/// A request of an attacker who even has a valid token: prints the code of the answer, 000 without a connection.
const ASK: &str = "curl -s -o /dev/null -w '%{http_code}' --unix-socket \"$socket\" -H \"X-Nomad-Token: $token\" http://x/v1/vars";

#[test]
fn only_the_user_of_a_task_connects_to_its_socket() {
    if !is_root() {
        return;
    }
    let long = "t".repeat(100);
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("victim", "service", "", &[of_user("t", "daemon"), of_user("other", "bin")]));
    agent.apply_and_wait(&job("elsewhere", "service", "", &[of_user("t", "nobody")]));
    agent.apply_and_wait(&job("long", "service", "", &[of_user(&long, "daemon")]));
    let (dir, token) = victim(&agent, "victim");
    let long_alloc = alloc(&agent, "long", &long);
    let runtime = home::runtime(&agent.home.instance().unwrap());
    let alias = fs::read_dir(runtime.join("api")).unwrap().next().unwrap().unwrap().path();
    assert!(fs::read_link(&alias).unwrap().starts_with(agent.home.state().join("alloc").join(long_alloc)));
    let by = |user: &str, script: &str, socket: &Path| {
        let drop = format!(
            "exec setpriv --reuid={user} --regid=nogroup --clear-groups sh -c '{}'",
            script.replace('\'', "'\\''")
        );
        let mut command = command::prepare(&agent.home, User::Same, Path::new("/bin/sh"), &["-c", &drop]);
        command.env("socket", socket).env("token", &token).env("r", &runtime);
        Running::start(command).finish().stdout
    };
    for socket in [&dir.join("api.sock"), &alias] {
        for (user, code) in
            [("daemon", "200"), ("root", "200"), ("bin", "000"), ("nobody", "000"), ("games", "000")]
        {
            assert_eq!(by(user, ASK, socket), code, "{user} on {}", socket.display());
        }
    }
    // From inside of tasks: of the same allocation and of another one.
    for (job, task) in [("victim", "other"), ("elsewhere", "t")] {
        let script = format!("socket={} token={token}; {ASK}", dir.join("api.sock").display());
        let tried = agent.cli(&["exec", job, "--task", task, "--", "sh", "-c", &script]);
        assert!(tried.code != 0 && tried.stdout.contains("000"), "{job}/{task}: {tried:?}");
        let own = format!("socket=secrets/api.sock token={token}; {ASK}");
        assert_eq!(agent.cli(&["exec", job, "--task", task, "--", "sh", "-c", &own]).success().stdout, "200");
    }
    // What the runtime directory, which tasks pass through to an alias, tells other users: nothing.
    let nosy = "for try in 'ls $r' 'ls $r/api' 'ls $r/attempts' 'cat $r/*' 'touch $r/x' 'touch $r/api/x' 'rm -f $socket' 'ln -sf /tmp $socket'; \
                do if eval $try >/dev/null 2>&1; then echo BROKEN $try; else echo held; fi; done";
    assert_eq!(by("nobody", nosy, &alias), "held\n".repeat(8));
    for entry in fs::read_dir(&runtime).unwrap().flatten() {
        let mode = entry.metadata().unwrap().mode() & 0o777;
        assert!(mode & 0o066 == 0, "{} has mode {mode:o}", entry.path().display());
    }
    agent.finish();
}

#[test]
fn what_a_task_plants_in_place_of_its_socket_changes_nothing_else() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("planter", "service", "", &[of_user("t", "nobody")]));
    let (dir, token) = victim(&agent, "planter");
    let file = agent.home.path().join("file");
    fs::write(&file, "of root").unwrap();
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let folder = agent.home.path().join("folder");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("keep"), "of root").unwrap();
    let (place, staging) = (dir.join("api.sock"), dir.join(".api.sock.new"));
    // The path of a socket is limited.
    let short = tempfile::tempdir().unwrap();
    symlink(&dir, short.path().join("s")).unwrap();
    // Nobody may connect to the task in the belief that it is the agent.
    let impostor = std::cell::RefCell::new(None);
    let plants: [(&str, &dyn Fn()); 6] = [
        ("a link to a file", &|| symlink(&file, &place).unwrap()),
        ("a link to a directory", &|| symlink(&folder, &place).unwrap()),
        ("a link as the staging directory", &|| symlink(&folder, &staging).unwrap()),
        ("a directory", &|| fs::create_dir(&place).unwrap()),
        ("a file", &|| fs::write(&place, "x").unwrap()),
        ("a socket", &|| {
            drop(impostor.replace(Some(UnixListener::bind(short.path().join("s/api.sock")).unwrap())))
        }),
    ];
    // While the agent serves the socket, and between two agents.
    let plants = [false, true].into_iter().flat_map(|is_down| plants.map(|plant| (is_down, plant)));
    // The kernel's report of another socket does not differ from that of the agent's own: only the next inspection finds it.
    let plants = plants.filter(|(is_down, (what, _))| *is_down || *what != "a socket");
    for (is_down, (what, plant)) in plants {
        if is_down {
            agent.kill();
        }
        fs::remove_file(&place).unwrap();
        plant();
        if is_down {
            agent.launch();
        }
        wait::until_true(&format!("it is the agent's socket again, after {what}"), || {
            fs::symlink_metadata(&place)
                .is_ok_and(|found| found.file_type().is_socket() && found.uid() == NOBODY)
                && status_now(&dir, &token) == Some(200)
        });
        if let Some(planted) = impostor.take() {
            planted.set_nonblocking(true).unwrap();
            assert!(planted.accept().is_err(), "the agent connects to no socket of a task");
        }
        assert!(!staging.exists() && fs::symlink_metadata(&staging).is_err(), "{what}");
        let about = fs::metadata(&file).unwrap();
        assert_eq!(
            (about.uid(), about.mode() & 0o777, fs::read_to_string(&file).unwrap()),
            (0, 0o600, "of root".to_owned()),
            "{what}"
        );
        let names: Vec<_> = fs::read_dir(&folder).unwrap().flatten().map(|entry| entry.file_name()).collect();
        assert_eq!((fs::metadata(&folder).unwrap().uid(), names), (0, vec!["keep".into()]), "{what}");
    }
    agent.finish();
}

/// The code of a request, without waiting for a server that does not answer.
fn status_now(dir: &Path, token: &str) -> Option<u16> {
    let link = tempfile::tempdir().unwrap();
    symlink(dir, link.path().join("s")).unwrap();
    let mut stream = UnixStream::connect(link.path().join("s/api.sock")).ok()?;
    stream.set_read_timeout(Some(std::time::Duration::from_secs(1))).ok()?;
    let request =
        format!("GET /v1/vars HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Nomad-Token: {token}\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    code(&mut stream)
}

/// The code of an answer.
fn code(stream: &mut UnixStream) -> Option<u16> {
    let mut head = [0; 12];
    stream.read_exact(&mut head).ok()?;
    str::from_utf8(&head).ok()?.get(9..)?.parse().ok()
}

/// The claims of a token.
fn claims(token: &str) -> Value {
    jsonwebtoken::dangerous::insecure_decode::<Value>(token).unwrap().claims
}

#[test]
fn a_token_holds_only_for_its_time_and_its_allocation() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    // Its stored form can be used here.
    agent.cli(&["identity", "key", "rotate", "--algorithm", "eddsa"]).success();
    let stubborn =
        "trap 'echo stopping >> local/log' TERM INT; echo up >> local/log; while :; do sleep 0.05; done";
    let task = shell("t", stubborn, &format!("user: nobody\nkill_timeout: 10m\n{IDENTITY}"));
    agent.apply_and_wait(&job("stopping", "service", "", &[task]));
    agent.apply_and_wait(&job("asked", "service", "", &[of_user("t", "daemon")]));
    let (dir, _) = victim(&agent, "asked");
    let (own, issued) = victim(&agent, "stopping");
    // Signed by this agent's key, with other times: as an old token, or one that is not valid yet.
    let (_, key) = super::tokens::active(&agent);
    let mut header = Header::new(Algorithm::EdDSA);
    header.kid = jsonwebtoken::decode_header(&issued).unwrap().kid;
    let issued_at = claims(&issued)["iat"].as_i64().unwrap();
    let signed = |change: Value| {
        let mut claims = claims(&issued);
        claims.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        jsonwebtoken::encode(&header, &claims, &key).unwrap()
    };
    for (what, change, expected) in [
        ("unchanged", json!({}), 200),
        ("of tomorrow", json!({ "exp": issued_at + 86_400 }), 200),
        ("expired", json!({ "exp": issued_at - 3_600 }), 403),
        ("not valid yet", json!({ "nbf": issued_at + 86_400 }), 403),
        ("for others", json!({ "aud": ["vault.io"] }), 403),
        ("of another task", json!({ "nomad_task": "none" }), 403),
        ("of no allocation", json!({ "nomad_allocation_id": "00000000-0000-4000-8000-000000000000" }), 403),
    ] {
        assert_eq!(status(&dir, "/v1/vars", &signed(change)), Some(expected), "{what}");
    }
    // It is told to stop, and keeps its rights on its way.
    let log = own.parent().unwrap().join("local/log");
    let is_logged = |text: &str| fs::read_to_string(&log).is_ok_and(|log| log.contains(text));
    wait::until_true("the trap is set", || is_logged("up"));
    agent.cli(&["stop", "stopping"]).success();
    wait::until_true("it is stopping", || is_logged("stopping"));
    assert_eq!(status(&own, "/v1/vars", &issued), Some(200));
    assert_eq!(status(&dir, "/v1/vars", &issued), Some(200));
    // It ends, and its token with it, although it was used a moment ago.
    for member in agent.members().iter().filter(|member| own.to_string_lossy().contains(&member.alloc)) {
        herdlet_e2e::host::signal(member.pid, Signal::KILL);
    }
    agent.until_alloc("stopping.g[0]", "has ended", |alloc| {
        ["complete", "failed"].contains(&alloc.status().as_str())
    });
    assert_eq!(status(&dir, "/v1/vars", &issued), Some(403));
    // Purged, it is unknown.
    agent.cli(&["delete", "stopping", "--wait"]).success();
    assert_eq!(status(&dir, "/v1/vars", &issued), Some(403));
    agent.finish();
}

#[test]
fn a_task_that_guesses_or_floods_is_limited_and_others_are_not() {
    if !is_root() {
        return;
    }
    let (mut agent, _) = on_loopback();
    for name in ["loud", "quiet"] {
        agent.apply_and_wait(&job(name, "service", "", &[of_user("t", "nobody")]));
    }
    let ((loud, own), (quiet, theirs)) = (victim(&agent, "loud"), victim(&agent, "quiet"));
    assert_eq!(status(&loud, "/v1/vars", &own), Some(200));
    let mut guesses = 0_u32;
    wait::until_true("further guesses are refused unseen", || {
        guesses += 1;
        status(&loud, "/v1/vars", &format!("00000000-0000-4000-8000-{guesses:012}")) == Some(429)
    });
    // A token that was accepted before is not looked up, and another socket has its own limit.
    assert_eq!(status(&loud, "/v1/vars", &own), Some(200));
    assert_eq!(status(&quiet, "/v1/vars", &theirs), Some(200));
    assert_eq!(status(&quiet, "/v1/vars", "guess"), Some(403));
    // It holds all connections that its socket may have, with requests that never end.
    let link = tempfile::tempdir().unwrap();
    symlink(&loud, link.path().join("s")).unwrap();
    let held: Vec<UnixStream> = (0..100)
        .map(|_| {
            let mut stream = UnixStream::connect(link.path().join("s/api.sock")).unwrap();
            stream.write_all(b"GET /v1/vars HTTP/1.1\r\nHost: x\r\n").unwrap();
            stream
        })
        .collect();
    assert_eq!(status(&quiet, "/v1/vars", &theirs), Some(200));
    assert_eq!(http::get(&Peer::Socket(agent.home.socket()), "/v1/agent/health").unwrap().status, 200);
    drop(held);
    wait::until_true("its own requests are answered again", || status_now(&loud, &own) == Some(200));
    agent.finish();
}

#[test]
fn headers_and_bodies_have_bounds() {
    if !is_root() {
        return;
    }
    let (mut agent, _) = on_loopback();
    agent.apply_and_wait(&job("big", "service", "", &[of_user("t", "nobody")]));
    let (dir, own) = victim(&agent, "big");
    let link = tempfile::tempdir().unwrap();
    symlink(&dir, link.path().join("s")).unwrap();
    let ask = |head: &str| {
        let mut stream = UnixStream::connect(link.path().join("s/api.sock")).unwrap();
        stream.set_read_timeout(Some(wait::PATIENCE)).unwrap();
        // The agent may close the connection before it has read everything.
        let _ = stream.write_all(head.as_bytes());
        code(&mut stream)
    };
    let put = |token: &str, length: u64| {
        format!(
            "PUT /v1/var/nomad/jobs/big HTTP/1.1\r\nHost: x\r\nX-Nomad-Token: {token}\r\nContent-Length: {length}\r\n\r\n{{"
        )
    };
    // Before it has read a body of a terabyte.
    assert_eq!(ask(&put("", 1 << 40)), Some(401));
    assert_eq!(ask(&put("guess", 1 << 40)), Some(403));
    assert_eq!(ask(&put(&own, 1 << 40)), Some(403), "a task's identity writes nothing");
    let large = format!("{}{}", put(TOKEN, 9 << 20), " ".repeat(9 << 20));
    assert_eq!(ask(&large), Some(413), "the body of an operator has a bound, too");
    let long = format!("GET /v1/vars HTTP/1.1\r\nHost: x\r\nX-Nomad-Token: {}\r\n\r\n", "x".repeat(1 << 20));
    let answer = ask(&long);
    assert!(matches!(answer, Some(431) | None), "a token of a MiB: {answer:?}");
    let many = format!(
        "GET /v1/vars HTTP/1.1\r\nHost: x\r\nX-Nomad-Token: {own}\r\n{}\r\n",
        "X-A: b\r\n".repeat(100)
    );
    assert_eq!(ask(&many), Some(431));
    assert_eq!(
        ask(&format!("GET /v1/vars HTTP/1.1\r\nHost: x\r\nX-Nomad-Token: {}\r\n\r\n", "x".repeat(20 << 10))),
        Some(403)
    );
    assert_eq!(status(&dir, "/v1/vars", &own), Some(200));
    agent.finish();
}
