//! `FileSystem.*`: files and logs of allocations.

use herdlet_api::alloc_ops::{error::ApiError, files, logs, stream::Form};
use herdlet_api_types::view::AllocView;
use herdlet_nomad::wire::Secret;
use herdlet_rpc::{
    codec::{Limits, Time},
    framed::Framed,
    serve::answer,
};
use serde::{Deserialize, Serialize};

use super::{
    Answered, NodeService, Queried,
    failure::{Failure, StreamEnd, last_frame},
    stream_answer::ToServer,
};
use crate::acl::Capability;

/// The file or log to read, and the range.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(super) struct FileCall {
    #[serde(rename = "AllocID")]
    alloc_id: String,
    path: String,
    task: String,
    log_type: String,
    offset: i64,
    origin: String,
    limit: i64,
    plain_text: bool,
    follow: bool,
    auth_token: Secret,
}

/// Nomad's `AllocFileInfo`.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Info {
    pub name: String,
    pub is_dir: bool,
    pub size: u64,
    file_mode: String,
    mod_time: Time,
    pub content_type: &'static str,
}

impl From<files::Info> for Info {
    fn from(info: files::Info) -> Self {
        Self {
            name: info.name,
            is_dir: info.is_dir,
            size: info.size,
            file_mode: info.mode,
            mod_time: Time::from_unix_nanos(info.modified.0),
            content_type: info.content_type.unwrap_or_default(),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    files: Vec<Info>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Described {
    info: Info,
}

impl NodeService {
    pub(super) async fn list(&self, wanted: FileCall) -> Answered {
        let alloc = self.alloc(&wanted.alloc_id, &wanted.auth_token, Capability::ReadFs).await?;
        let files = self.parts.reach.list(&alloc, &wanted.path).await?;
        Ok(answer(&Queried::new(Listed { files: files.into_iter().map(Info::from).collect() }))?)
    }

    pub(super) async fn stat(&self, wanted: FileCall) -> Answered {
        let alloc = self.alloc(&wanted.alloc_id, &wanted.auth_token, Capability::ReadFs).await?;
        let info = self.parts.reach.stat(&alloc, &wanted.path).await?.into();
        Ok(answer(&Queried::new(Described { info }))?)
    }

    pub(super) async fn logs(&self, stream: &mut ToServer) -> Result<(), StreamEnd> {
        let Some(wanted) = arguments::<FileCall>(stream).await? else { return Ok(()) };
        let form = Form::of(wanted.plain_text);
        match self.open_log(wanted).await {
            Ok(reading) => {
                let model = self.parts.reach.model.clone();
                self.send_stream(stream, |pieces| reading.run(model, form, pieces)).await
            }
            // Stock clients send no code if access is denied.
            Err(Failure::Denied(denied)) => Ok(stream.send(&last_frame(denied, None)).await?),
            Err(failure) => Ok(stream.send(&last_frame(&failure, Some(code(&failure)))).await?),
        }
    }

    async fn open_log(&self, wanted: FileCall) -> Result<logs::Reading, Failure> {
        let alloc = self.of_stream(&wanted, &[Capability::ReadLogs, Capability::ReadFs]).await?;
        let FileCall { task, log_type: kind, follow, offset, origin, .. } = wanted;
        let offset = u64::try_from(offset).unwrap_or_default();
        let wanted = logs::LogRequest {
            task,
            kind,
            follow,
            offset,
            origin,
            tail: None,
            since: None,
            timestamps: false,
        };
        Ok(self.parts.reach.open_log(&alloc, wanted).await?)
    }

    pub(super) async fn file(&self, stream: &mut ToServer) -> Result<(), StreamEnd> {
        let Some(wanted) = arguments::<FileCall>(stream).await? else { return Ok(()) };
        let form = Form::of(wanted.plain_text);
        match self.open_file(wanted).await {
            Ok(transfer) => self.send_stream(stream, |pieces| transfer.run(form, pieces)).await,
            Err(Failure::Failed(error)) => {
                Ok(stream.send(&last_frame(&error, Some(code_of_file(&error)))).await?)
            }
            Err(failure) => Ok(stream.send(&last_frame(&failure, Some(code(&failure)))).await?),
        }
    }

    async fn open_file(&self, wanted: FileCall) -> Result<files::Telling, Failure> {
        let alloc = self.of_stream(&wanted, &[Capability::ReadFs]).await?;
        let FileCall { path, offset, limit, origin, follow, .. } = wanted;
        let number = |number| u64::try_from(number).unwrap_or_default();
        let wanted =
            files::FileRequest { path, offset: number(offset), limit: number(limit), origin, follow };
        Ok(self.parts.reach.open_file(&alloc, wanted).await?)
    }

    /// The allocation of a stream, if the token has one of the capabilities for it.
    async fn of_stream(
        &self,
        wanted: &FileCall,
        one_of: &[Capability],
    ) -> Result<std::sync::Arc<AllocView>, Failure> {
        if wanted.alloc_id.is_empty() {
            return Err(ApiError::bad("must provide a valid alloc id").into());
        }
        let alloc = self.parts.reach.alloc(&wanted.alloc_id)?;
        self.may(&alloc, &wanted.auth_token, one_of).await?;
        if alloc.collected {
            let missing = format!("state for allocation {} not found on client", alloc.spec.id);
            return Err(ApiError::NotFound(missing).into());
        }
        Ok(alloc)
    }
}

/// Reads the arguments of a streaming call; sends an error if they cannot be decoded.
pub(super) async fn arguments<T: serde::de::DeserializeOwned>(
    stream: &mut Framed<Box<dyn herdlet_rpc::mux::Io>>,
) -> Result<Option<T>, StreamEnd> {
    use herdlet_rpc::error::MessageError;
    match stream.read(Limits::ARGUMENTS).await {
        Ok(arguments) => Ok(Some(arguments)),
        Err(MessageError::Decode(error)) => {
            stream.send(&last_frame(format!("failed to {error}"), Some(500))).await?;
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// The HTTP status code of a failure.
pub(super) fn code(failure: &Failure) -> u16 {
    match failure {
        Failure::Denied(denied) => denied.code(),
        Failure::Failed(error) => error.code(),
        Failure::Refusal(_) | Failure::Arguments(_) => 500,
    }
}

/// The HTTP status code of a failure to read a file, as in stock clients: 400 if the file is missing, 500 if it is secret.
fn code_of_file(error: &ApiError) -> u16 {
    match error {
        ApiError::Forbidden(_) => 500,
        ApiError::NotFound(why) if why.starts_with("no such file") => 400,
        ApiError::NotFound(_)
        | ApiError::BadRequest(_)
        | ApiError::Problems(_)
        | ApiError::Conflict(_)
        | ApiError::TooLarge(_)
        | ApiError::Slow(_)
        | ApiError::NotBuilt(_)
        | ApiError::Unavailable(_)
        | ApiError::Open(_)
        | ApiError::Defect(_)
        | ApiError::Failed(_) => error.code(),
    }
}
