//! `herdlet images`: the images that tasks use or have used.
//!
//! In: the agent's list. Out: a line for each image, with its users.

use clap::Args;
use herdlet_api_types::driver::{ImageUse, ImageView};
use serde::Serialize;

use super::{
    Connection,
    failure::Failure,
    output::{Output, Reader},
    show,
    table::{Heading, Table},
};

/// Arguments of `herdlet images`.
#[derive(Debug, Clone, Args)]
pub struct ImagesArgs {
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

/// The document for programs.
#[derive(Serialize)]
struct Listing {
    images: Vec<ImageView>,
}

pub async fn run(args: ImagesArgs) -> Result<u8, Failure> {
    let images = args.connection.client()?.images().await?;
    if args.output.reader() == Reader::Person {
        show::out(&summary(&images));
    }
    args.output.document(&Listing { images })?;
    Ok(0)
}

fn summary(images: &[ImageView]) -> String {
    if images.is_empty() {
        return "no task has used an image\n".to_owned();
    }
    let mut table = Table::new(&["IMAGE", "DRIVER", "DIGEST", "SIZE", "LAST USED", "USED BY"]);
    for image in images {
        let digest = image.digest.trim_start_matches("sha256:").chars().take(12).collect::<String>();
        let (size, used) = match image.digest.is_empty() {
            true => ("not there".to_owned(), show::age(image.last_used)),
            false => (show::bytes(image.size_bytes), show::age(image.last_used)),
        };
        let used = if image.used_by.is_empty() { used } else { "now".to_owned() };
        let users: Vec<String> = image.used_by.iter().map(user).collect();
        table.row([image.name.clone(), image.driver.clone(), digest, size, used, users.join(", ")]);
    }
    table.render(Heading::Shown)
}

/// A task, and what it has written outside of its mounts.
fn user(user: &ImageUse) -> String {
    let alloc = if user.alloc_name.is_empty() { user.alloc.short() } else { user.alloc_name.clone() };
    let written = user.writable_bytes.filter(|bytes| *bytes > 0);
    let written = written.map(|bytes| format!(" (+{})", show::bytes(bytes))).unwrap_or_default();
    format!("{alloc}/{}{written}", user.task)
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::AllocId;

    use super::*;
    use crate::output::versioned;

    #[test]
    fn an_image_is_shown_with_its_users() {
        let user = ImageUse {
            alloc: AllocId::from_hash([1; 16]),
            alloc_name: "web.g[0]".to_owned(),
            task: "t".to_owned(),
            writable_bytes: Some(2048),
        };
        let image = ImageView {
            driver: "docker".to_owned(),
            name: "redis:7".to_owned(),
            digest: format!("sha256:{}", "ab".repeat(32)),
            used_by: vec![user],
            ..ImageView::default()
        };
        let shown = summary(std::slice::from_ref(&image));
        for part in ["redis:7", "abababababab ", "now", "web.g[0]/t (+"] {
            assert!(shown.contains(part), "{shown}");
        }
        let gone = ImageView { digest: String::new(), used_by: Vec::new(), ..image };
        assert!(summary(&[gone]).contains("not there"));
        assert_eq!(summary(&[]), "no task has used an image\n");
    }

    /// A document can't be a list: `-o json` and `-o yaml` always failed.
    #[test]
    fn the_document_is_an_object() {
        let images = vec![ImageView { name: "redis:7".to_owned(), ..ImageView::default() }];
        let document = serde_json::to_value(versioned(&Listing { images })).unwrap();
        assert_eq!(
            (&document["apiVersion"], &document["images"][0]["name"]),
            (&"herdlet/v1".into(), &"redis:7".into())
        );
    }
}
