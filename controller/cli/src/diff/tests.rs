//! Examples of changes, with the allocations that they affect, and their text.

use std::sync::Arc;

use serde_json::json;

use super::{groups::GroupKind, *};
use herdlet_manifest::fixture::job_view;

fn plain(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

#[test]
fn diff_lists_changed_fields_and_ignores_order() {
    let known =
        json!({ "n": 1, "tasks": [{ "name": "a", "cpu": 1 }, { "name": "b" }], "old": "x", "none": null });
    let wanted = json!({ "n": 1, "tasks": [{ "name": "b" }, { "name": "a", "cpu": 2 }], "new": [1] });
    let change_text =
        |known, wanted| change("job/web".to_owned(), known, wanted).map(|one| plain(&lines(&one)));
    assert_eq!(
        change_text(Some(&known), &wanted).unwrap(),
        "~ job/web\n  + new[0]: 1\n  - old: x\n  ~ tasks[a].cpu: 1 → 2\n"
    );
    assert_eq!(change_text(Some(&known), &known), None);
    assert_eq!(change_text(None, &known).unwrap(), "+ job/web\n");
}

#[test]
fn diff_names_the_change_of_each_group() {
    let mut known = (*herdlet_manifest::fixture::job("web", "front", "httpd")).clone();
    let group = |name: &str| {
        let mut group = known.groups[0].clone();
        group.name = name.to_owned();
        group
    };
    known.groups = ["same", "more", "policy", "work", "old"].map(group).into_iter().collect();
    let mut wanted = known.clone();
    wanted.groups[1].count += 1;
    let update = "apiVersion: herdlet/v1\nkind: Job\nmetadata: {name: x}\nspec:\n  groups:\n    - {name: g, update: {max_parallel: 2}, tasks: [{name: t, driver: mock, config: {}}]}\n";
    let parsed = manifests::parse("t", update.as_bytes(), &Drivers::built_in()).unwrap();
    wanted.groups[2].update = parsed.jobs[0].object.groups[0].update.clone();
    wanted.groups[3].tasks[0].env.insert("A".to_owned(), "1".to_owned());
    // This field alone would be an in-place change, and is not a cause of the replacement.
    wanted.groups[3].tasks[0].kill_timeout = herdlet_api_types::Duration::from_secs(90);
    wanted.groups[4].name = "new".to_owned();
    let change = change("job/web".to_owned(), Some(&document(&known)), &document(&wanted)).unwrap();
    let view = job_view(&Arc::new(known), 1);
    let current = CurrentJob::of(&view, &[], &[]);
    let shown = groups(Some(&current), &wanted, &change.fields);
    let shown: Vec<_> =
        shown.iter().map(|one| (one.group.as_str(), one.change, one.because.join(" "))).collect();
    assert_eq!(shown[0], ("same", GroupKind::Nothing, String::new()));
    assert_eq!(
        shown[1],
        ("more", GroupKind::Nothing, String::new()),
        "new allocations are created beside them"
    );
    assert_eq!((shown[2].0, shown[2].1), ("policy", GroupKind::InPlace));
    assert!(shown[2].2.starts_with("update"), "{}", shown[2].2);
    assert_eq!(shown[3], ("work", GroupKind::Replace, "tasks[httpd].env.A".to_owned()));
    assert_eq!(shown[4], ("new", GroupKind::Create, String::new()));
    assert_eq!(shown[5], ("old", GroupKind::Stop, String::new()));
    let change = Change { groups: groups(Some(&current), &wanted, &change.fields), ..change };
    let replaced = "  group work: replace, all at once (it has no `update`), because of tasks[httpd].env.A\n";
    assert!(plain(&lines(&change)).contains(replaced));
    assert!(plain(&lines(&change)).contains("  group more: 1 more\n"));
    wanted.groups[3].update = wanted.groups[2].update.clone();
    let change = Change { groups: groups(Some(&current), &wanted, &change.fields), ..change };
    assert!(plain(&lines(&change)).contains("  group work: replace, 2 at a time, because of "));
    let update = wanted.groups[3].update.as_mut().unwrap();
    update.canary = 1;
    let change = Change { groups: groups(Some(&current), &wanted, &change.fields), ..change };
    assert!(
        plain(&lines(&change)).contains("  group work: replace, 1 canary first, 2 at a time, because of ")
    );
    let groups = groups(None, &wanted, &[]);
    let created = Change { object: "job/web".to_owned(), groups, ..Change::default() };
    assert!(plain(&lines(&created)).starts_with("+ job/web\n  group same: create 1\n"));
}

#[test]
fn values_are_shown_as_manifests_write_them() {
    let job = herdlet_manifest::fixture::job("web", "front", "httpd");
    let mut changed = (*job).clone();
    changed.groups[0].tasks[0].kill_timeout = herdlet_api_types::Duration::from_secs(90);
    changed.groups[0].tasks[0].env.insert("A".to_owned(), "two words".to_owned());
    let change = change("job/web".to_owned(), Some(&document(&job)), &document(&changed)).unwrap();
    assert_eq!(
        plain(&lines(&change)),
        "~ job/web\n  + spec.groups[front].tasks[httpd].env.A: \"two words\"\n  + spec.groups[front].tasks[httpd].kill_timeout: 1m30s\n"
    );
    assert_eq!(
        serde_json::to_value(&change.fields[1]).unwrap(),
        json!({ "path": "spec.groups[front].tasks[httpd].kill_timeout", "after": "1m30s" })
    );
}
