//! The call that a row makes to a server or to the node itself: its method, the sources of its fields, and the part of its answer
//! to return.
//!
//! A dot in a field name leads into a nested field.

#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// `Service.Method` of a server.
    pub method: &'static str,
    /// Fields from the query.
    pub query: &'static [(&'static str, FieldSource)],
    /// Fields from the body.
    pub body: CallBody,
    /// Other inputs of the call.
    pub request: RequestRule,
    /// The part of the answer to return.
    pub answer: AnswerPart,
    /// How to render it.
    pub response: ResponseRule,
}

/// The source of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldSource {
    /// A query parameter, as text.
    Text(&'static str),
    /// A query parameter, as a boolean.
    Flag(&'static str),
    /// True if the query has this parameter.
    Presence(&'static str),
    /// A query parameter, as a number.
    Number(&'static str),
    /// A constant.
    Constant(i64),
}

/// The use of a request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallBody {
    /// The body is not read.
    Ignored,
    /// These fields.
    Fields(&'static [&'static str]),
    /// These fields, each with the name of the call's field.
    Renamed(&'static [(&'static str, &'static str)]),
    /// All fields.
    All,
    /// The body is the value of this field.
    In(&'static str),
    /// The body is the only element of this list field.
    OneOf(&'static str),
    /// The same, but one field of the body must equal the path parameter. The last string names that field in errors.
    OneNamed(&'static str, &'static str, &'static str),
    /// The body has a job and these fields.
    Job(JobUse, &'static [&'static str]),
    /// The body is bytes, the value of this field.
    Raw(&'static str),
}

/// The purpose of a job in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobUse {
    Register,
    Plan,
    Validate,
}

/// Inputs of a call besides fields from query, body and path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestRule {
    Plain,
    /// The query has the operation on a variable: `cas`, `lock-acquire`, `lock-renew`, `lock-release`.
    Variable,
    /// The name in the path is also the name of the tag.
    VersionTag,
    /// CSI secrets from a header.
    Secrets,
    /// The same. The query must name the node whose claim is released.
    Claim,
}

/// The part of an answer to return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerPart {
    Whole,
    Field(&'static str),
    /// A list field; nil becomes an empty list.
    List(&'static str),
    /// The first element of a list field; nothing if the list is empty.
    First(&'static str),
    /// A field; 404 with this text if it is nil.
    Found(&'static str, &'static str),
    Nothing,
}

/// Changes to an answer or error of a server before it is returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseRule {
    /// None.
    Plain,
    /// Omits these fields of the object, or of each object in the list, if they are nil or 0.
    OmitEmpty(&'static [&'static str]),
    /// Omits the signed identities of tasks.
    OmitIdentities,
    /// A variable: a conflict becomes 409, a removal 204.
    Variable,
    /// An allocation that the servers don't know becomes 404 with a different text.
    KnownAlloc,
    /// A node: without its secret, and with its drain flag.
    Node,
    /// Versions of a job: an empty list becomes 404.
    Versions,
    /// The source of a job: its variables are escaped in storage.
    Submission,
    /// The health of servers, as text; 429 if a server is not healthy.
    ServerHealth,
    /// Keys as a JWK set.
    PublicKeys,
    /// The location of the keys, as an OpenID Connect document; 404 if there is none.
    Discovery,
}

/// A call that reads.
pub(super) const fn read(method: &'static str, answer: AnswerPart) -> Call {
    Call {
        method,
        query: &[],
        body: CallBody::Ignored,
        request: RequestRule::Plain,
        answer,
        response: ResponseRule::Plain,
    }
}

/// A call that changes something. Returns its whole answer.
pub(super) const fn write(method: &'static str, body: CallBody) -> Call {
    Call { body, ..read(method, AnswerPart::Whole) }
}

/// A call that removes something. Returns nothing.
pub(super) const fn remove(method: &'static str) -> Call {
    read(method, AnswerPart::Nothing)
}

impl Call {
    pub(super) const fn with(self, query: &'static [(&'static str, FieldSource)]) -> Self {
        Self { query, ..self }
    }

    pub(super) const fn shows(self, answer: AnswerPart) -> Self {
        Self { answer, ..self }
    }

    pub(super) const fn with_request(self, request: RequestRule) -> Self {
        Self { request, ..self }
    }

    pub(super) const fn with_response(self, response: ResponseRule) -> Self {
        Self { response, ..self }
    }
}
