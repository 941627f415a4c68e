//! Files and folders, and other directory entries in them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::super::{Drivers, Variables, load, read_folder};

fn job(name: &str) -> String {
    format!(
        "apiVersion: herdlet/v1\nkind: Job\nmetadata: {{name: {name}}}\n\
         spec: {{groups: [{{name: g, tasks: [{{name: t, driver: mock}}]}}]}}\n"
    )
}

fn write(folder: &Path, name: &str, text: &str) {
    fs::write(folder.join(name), text).unwrap();
}

#[test]
fn a_folder_is_read_by_name_and_not_below() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    write(path, "b.yaml", &job("b"));
    write(path, "a.yml", &format!("{}---\n{}", job("a-one"), job("a-two")));
    for name in ["a.yaml~", ".a.yaml.swp", ".hidden.yaml", "#a.yaml#", ".#a.yaml", "notes.txt", "yaml"] {
        write(path, name, "not: [a manifest");
    }
    fs::create_dir(path.join("sub.yaml")).unwrap();
    write(&path.join("sub.yaml"), "c.yaml", &job("c"));
    std::os::unix::fs::symlink(path.join("b.yaml"), path.join("z.txt")).unwrap();
    let set = load(&[path.to_owned()], &Drivers::built_in(), &Variables::default())
        .unwrap_or_else(|all| panic!("{all}"));
    let names: Vec<&str> = set.jobs.iter().map(|loaded| loaded.object.id.as_str()).collect();
    assert_eq!(names, ["a-one", "a-two", "b"]);
    assert_eq!((set.jobs[1].index, set.jobs[1].position.line), (1, 6));
    assert_eq!(&*set.jobs[2].source, path.join("b.yaml").to_str().unwrap());
}

#[test]
fn broken_file_withholds_the_whole_set() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "a.yaml", &job("a"));
    write(folder.path(), "b.yaml", "kind: Thing\napiVersion: herdlet/v1");
    let missing = folder.path().join("none.yaml");
    let problems =
        load(&[folder.path().to_owned(), missing.clone()], &Drivers::built_in(), &Variables::default())
            .unwrap_err();
    let messages: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(messages.len(), 2, "{problems}");
    assert!(messages[0].contains("b.yaml:1:7: kind: expected"), "{problems}");
    assert!(messages[1].starts_with(&format!("{}: cannot be read: ", missing.display())), "{problems}");
}

#[test]
fn a_watched_folder_answers_file_by_file() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "a.yaml", &job("one"));
    write(folder.path(), "b.yaml", "kind: [");
    write(folder.path(), "c.yaml", &job("one"));
    write(folder.path(), "d.yaml", &job("two"));
    std::os::unix::fs::symlink("nowhere", folder.path().join("e.yaml")).unwrap();
    let read = read_folder(folder.path(), &Drivers::built_in(), &BTreeSet::new());
    assert!(read.problem.is_none());
    let good: Vec<bool> = read.files.iter().map(|file| file.content.is_ok()).collect();
    assert_eq!(good, [true, false, false, true, false]);
    let problems = read.files[2].content.as_ref().unwrap_err().to_string();
    assert!(
        problems.contains("Job `one` is already defined at") && problems.contains("a.yaml:3:18"),
        "{problems}"
    );
}

#[test]
fn empty_or_missing_folders_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let problems =
        load(&[folder.path().to_owned()], &Drivers::built_in(), &Variables::default()).unwrap_err();
    assert!(problems.to_string().contains("contains no manifest: no file name ends in .yaml"), "{problems}");
    let read = read_folder(folder.path(), &Drivers::built_in(), &BTreeSet::new());
    assert!(read.files.is_empty() && read.problem.is_none());
    let read = read_folder(&folder.path().join("none"), &Drivers::built_in(), &BTreeSet::new());
    assert!(read.problem.unwrap().message.starts_with("cannot be listed: "));
}

#[test]
fn too_large_file_is_refused_before_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.yaml");
    fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
    let problems = load(&[path], &Drivers::built_in(), &Variables::default()).unwrap_err();
    assert!(problems.to_string().contains("the limit is"), "{problems}");
}
