//! A folder is read, compared with the jobs that it owned, and stored.

use herdlet_api_types::JobKey;
use herdlet_plan::event::Reply;
use herdlet_runtime::CommitIndex;

use super::*;
use crate::planner::Answer;

const JOB: &str = "apiVersion: herdlet/v1\nkind: Job\nmetadata: {name: NAME}\nspec:\n  type: batch\n  groups:\n    \
                   - name: g\n      tasks:\n        - name: t\n          driver: raw_exec\n          config: {command: /bin/true}\n";

fn write(dir: &Path, file: &str, job: &str) {
    std::fs::write(dir.join(file), JOB.replace("NAME", job)).unwrap();
}

fn key(id: &str) -> JobKey {
    JobKey { namespace: "default".into(), id: id.into() }
}

fn read(owned: &Owned, dir: &Path) -> FolderDiff {
    FolderDiff::of(read_folder(dir, &Drivers::built_in(), &owning(owned)), owned)
}

#[test]
fn removed_file_removes_jobs_and_broken_file_keeps_them() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "a.yaml", "a");
    write(dir.path(), "b.yaml", "b");
    let first = read(&Owned::new(), dir.path());
    assert_eq!(first.jobs.len(), 2);
    assert!(first.gone.is_empty());
    std::fs::remove_file(dir.path().join("a.yaml")).unwrap();
    std::fs::write(dir.path().join("b.yaml"), "kind: [").unwrap();
    let second = read(&first.owned, dir.path());
    assert!(second.jobs.is_empty());
    assert_eq!(second.gone, [key("a")].into());
    assert!(!second.problems.is_empty());
    assert_eq!(second.owned["b.yaml"], [key("b")].into());
}

/// A copied file that was meant to become another job used to take the job away from its file.
#[test]
fn owning_file_keeps_its_job() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "b.yaml", "b");
    let first = read(&Owned::new(), dir.path());
    write(dir.path(), "a.yaml", "b");
    let second = read(&first.owned, dir.path());
    assert_eq!(second.owned["b.yaml"], [key("b")].into());
    let problem = &second.problems[0];
    assert!(problem.source.ends_with("a.yaml") && problem.message.contains("already defined"), "{problem}");
    std::fs::remove_file(dir.path().join("b.yaml")).unwrap();
    assert_eq!(read(&second.owned, dir.path()).owned["a.yaml"], [key("b")].into());
}

#[test]
fn empty_file_is_broken_and_comment_only_file_is_valid() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "a.yaml", "a");
    let first = read(&Owned::new(), dir.path());
    for text in ["", " \n\n"] {
        std::fs::write(dir.path().join("a.yaml"), text).unwrap();
        let emptied = read(&first.owned, dir.path());
        assert!(emptied.gone.is_empty() && emptied.problems[0].message.starts_with("is empty;"));
    }
    std::fs::write(dir.path().join("a.yaml"), "# for now\n").unwrap();
    let commented = read(&first.owned, dir.path());
    assert!(commented.gone == [key("a")].into() && commented.problems.is_empty());
}

/// A job of a file ran in another region without a word.
#[test]
fn a_job_of_another_region_has_a_warning() {
    let (dir, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (inbox, _) = Inbox::with_capacity(1);
    let drivers = watch::channel(Drivers::built_in()).1;
    let source = FolderSource::new(dir.path().into(), state.path(), drivers, inbox, Arc::default())
        .in_region("eu".to_owned());
    write(dir.path(), "a.yaml", "a");
    std::fs::write(
        dir.path().join("b.yaml"),
        JOB.replace("NAME", "b").replace("spec:", "spec:\n  region: us"),
    )
    .unwrap();
    let diff = read(&Owned::new(), dir.path());
    let warnings: Vec<Problem> =
        diff.jobs.iter().filter_map(|(job, definition)| source.other_region(job, definition)).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let Problem { source, message, .. } = &warnings[0];
    assert!(
        source.ends_with("b.yaml") && message.starts_with("job \"b\": region \"us\" has no effect"),
        "{message}"
    );
}

#[test]
fn folder_on_another_file_system_removes_nothing() {
    let (dir, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (inbox, _) = Inbox::with_capacity(1);
    let owners = Arc::<Owners>::default();
    let new = || {
        FolderSource::new(
            dir.path().into(),
            state.path(),
            watch::channel(Drivers::built_in()).1,
            inbox.clone(),
            Arc::clone(&owners),
        )
    };
    let before: Owned = [("a.yaml".to_owned(), [key("a")].into())].into();
    new().remember(&before, Some((7, 1))).unwrap();
    // Also after a restart of the agent.
    let source = new();
    assert_eq!((source.remembered.owned(), source.remembered.place()), (before.clone(), Some((7, 1))));
    let mut lost = read(&before, dir.path());
    assert_eq!(source.keep_what_a_loss_took(&before, &mut lost, Some((8, 1))), Some((7, 1)));
    assert!(lost.gone.is_empty() && lost.owned == before);
    assert!(
        lost.problems[0].message.contains("another file system")
            && lost.problems[0].message.contains("delete a")
    );
    // Files removed on the same file system remove their jobs, and a folder that moved with all its files has moved.
    let mut removed = read(&before, dir.path());
    assert_eq!(source.keep_what_a_loss_took(&before, &mut removed, Some((7, 1))), Some((7, 1)));
    assert_eq!(removed.gone, [key("a")].into());
    // Another directory without manifests is being filled.
    let mut reread = read(&before, dir.path());
    assert_eq!(source.keep_what_a_loss_took(&before, &mut reread, Some((7, 2))), Some((7, 1)));
    assert!(reread.gone.is_empty() && reread.problems[0].message.contains("another directory"));
    write(dir.path(), "b.yaml", "b");
    let mut replaced = read(&before, dir.path());
    assert_eq!(source.keep_what_a_loss_took(&before, &mut replaced, Some((7, 2))), Some((7, 2)));
    assert_eq!(replaced.gone, [key("a")].into());
    write(dir.path(), "a.yaml", "a");
    let mut moved = read(&before, dir.path());
    assert_eq!(source.keep_what_a_loss_took(&before, &mut moved, Some((8, 1))), Some((8, 1)));
}

#[test]
fn folder_record_of_an_older_release_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let memory = dir.path().join("m.json");
    std::fs::write(&memory, serde_json::to_vec(&[("a.yaml", [key("a")])]).unwrap()).unwrap();
    let recalled = Memory::read(&memory).unwrap();
    assert_eq!(
        (recalled.owned(), recalled.device),
        ([("a.yaml".to_owned(), [key("a")].into())].into(), None)
    );
}

#[test]
fn vanished_folder_removes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "a.yaml", "a");
    let first = read(&Owned::new(), dir.path());
    let second = read(&first.owned, &dir.path().join("gone"));
    assert!(second.gone.is_empty());
    assert_eq!(second.owned, first.owned);
    assert!(second.unreadable.is_some());
}

#[test]
fn job_moves_between_files_without_a_stop() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "a.yaml", "a");
    let first = read(&Owned::new(), dir.path());
    std::fs::rename(dir.path().join("a.yaml"), dir.path().join("z.yaml")).unwrap();
    let second = read(&first.owned, dir.path());
    assert!(second.gone.is_empty());
    write(dir.path(), "b.yaml", "a");
    let third = read(&second.owned, dir.path());
    assert_eq!(third.jobs.len(), 1);
    assert_eq!(third.problems.len(), 1);
}

/// A user who could write to a file of variables could run any program as root, by `LD_PRELOAD`, without a warning.
#[test]
fn files_of_variables_that_others_can_change_are_reported() {
    use std::os::unix::fs::PermissionsExt as _;
    let (dir, beside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (inner, outer) = (dir.path().join("n.env"), beside.path().join("n.env"));
    let job = JOB.replace("NAME", "a");
    std::fs::write(
        dir.path().join("a.yaml"),
        format!("{job}          env_file: [n.env, {}]\n", outer.display()),
    )
    .unwrap();
    for path in [&inner, &outer] {
        std::fs::write(path, "A=b").unwrap();
    }
    let reported = |modes: [u32; 2]| {
        for (path, mode) in [&inner, &outer].into_iter().zip(modes) {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let folder = read_folder(dir.path(), &Drivers::built_in(), &BTreeSet::new());
        assert!(folder.files[0].content.is_ok(), "{folder:?}");
        exposed(dir.path(), &folder)
    };
    assert_eq!(reported([0o600, 0o600]), None);
    for (modes, path) in [([0o666, 0o600], &inner), ([0o600, 0o666], &outer)] {
        let problem = reported(modes).unwrap();
        assert_eq!(Path::new(&problem.source), path);
    }
    assert!(reported([0o666, 0o666]).unwrap().message.starts_with("2 files are used"));
}

/// `wait` returned before a file that was written just before had been read.
#[tokio::test]
async fn a_request_to_read_the_folder_ends_when_its_jobs_are_applied() {
    let (dir, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (inbox, mut arrivals) = Inbox::with_capacity(4);
    let (drivers, owners) = (watch::channel(Drivers::built_in()).1, Arc::default());
    let source = FolderSource::new(dir.path().into(), state.path(), drivers, inbox, owners);
    let rereads = source.rereads();
    let (applied, now) = watch::channel(BTreeSet::new());
    let planner = tokio::spawn(async move {
        loop {
            let Some(Input::Request(command, answer)) = arrivals.take() else {
                tokio::task::yield_now().await;
                continue;
            };
            let Command::ApplyFolder { jobs, .. } = command else { panic!("{command:?}") };
            applied.send_replace(jobs.iter().map(|(job, _)| job.id.clone()).collect());
            let reply = Reply::Applied { index: 1, jobs: Vec::new(), volumes: Vec::new() };
            let _ = answer.send(Answer { reply, index: CommitIndex(1) });
        }
    });
    let following = tokio::spawn(source.follow());
    for job in ["a", "b", "c", "d"] {
        write(dir.path(), &format!("{job}.yaml"), job);
        rereads.read_again().await;
        assert!(now.borrow().contains(job), "{job} of {:?}", now.borrow());
    }
    // A folder that is gone can't be read: nobody waits for it.
    drop(dir);
    rereads.read_again().await;
    for task in [planner, following] {
        task.abort();
    }
}
