//! Rows of the versions of one job.
//!
//! In: the agent's job and its kept versions. Out: rows, newest first.

use herdlet_api_types::view::{JobVersion, JobView};

use super::listing::{Cell, Document, Listing, Row};
use crate::{
    client::Client,
    failure::{Failure, USAGE},
    missing::Missing,
    rollback,
};

pub(super) async fn list(client: &Client, targets: &[String], missing: Missing) -> Result<Listing, Failure> {
    let [name] = targets else {
        return Err(Failure::new("versions belong to one job, name it: herdlet get versions JOB").code(USAGE));
    };
    let mut listing = Listing::new(&["VERSION", "AGE", "STABLE", ""]);
    let job = match rollback::known(client.jobs().await?, name) {
        Ok(view) => view,
        Err(failure) if missing == Missing::IsWrong => return Err(failure),
        Err(_) => return Ok(listing),
    };
    let kept = client.versions(&job.key).await?;
    let notes: Vec<String> = (0..kept.len()).map(|at| version_notes(&job, &kept, at)).collect();
    for (version, note) in kept.into_iter().zip(notes) {
        let stable = if job.is_stable(version.version) { "yes" } else { "-" };
        let name = version.version.to_string();
        let cells =
            vec![name.clone().into(), Cell::Age(version.submit_time), stable.to_owned().into(), note.into()];
        listing.rows.push(Row { key: name.clone(), name, cells, document: Document::Version(version) });
    }
    Ok(listing)
}

/// What distinguishes a version; after a rollback, the version that it restored. `kept` is sorted newest first.
fn version_notes(job: &JobView, kept: &[JobVersion], at: usize) -> String {
    let Some((version, older)) = kept.get(at..).and_then(<[_]>::split_first) else { return String::new() };
    let same = older.iter().find(|older| older.job == version.job);
    let notes = [
        (at == 0).then(|| "current".to_owned()),
        version.job.stop.then(|| "stopped".to_owned()),
        job.has_failed(version.version).then(|| "failed".to_owned()),
        same.map(|same| format!("same as {}", same.version)),
    ];
    notes.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::UnixNanos;

    use super::*;

    /// `rollback` skips versions that the list did not distinguish.
    #[test]
    fn repeated_version_is_listed_with_its_original() {
        let texts = ["good", "bad", "good"].map(|name| herdlet_manifest::fixture::job(name, "g", "t"));
        let version =
            |(version, job)| JobVersion { version, index: 0, submit_time: UnixNanos(0), job, tag: None };
        let mut kept: Vec<JobVersion> = (0..).zip(texts).map(version).collect();
        kept.reverse();
        let view = herdlet_manifest::fixture::job_view(&kept[0].job, 2);
        let notes: Vec<String> = (0..3).map(|at| version_notes(&view, &kept, at)).collect();
        assert_eq!(notes, ["current, same as 0", "", ""]);
    }
}
