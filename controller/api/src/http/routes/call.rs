//! A call to a server, or to the node itself, as a row describes it: its method, where its fields come from, what of its answer is shown.
//!
//! A dot in the name of a field leads into a field.

/// A call.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// `Service.Method` of a server.
    pub method: &'static str,
    /// Fields from the query.
    pub query: &'static [(&'static str, FieldSource)],
    /// Fields from the body.
    pub body: CallBody,
    /// What else the call needs.
    pub request: RequestRule,
    /// What of the answer is shown.
    pub answer: AnswerPart,
    /// How it is shown.
    pub response: ResponseRule,
}

/// Where a field comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldSource {
    /// A parameter, as a text.
    Text(&'static str),
    /// A parameter, as true or false.
    Flag(&'static str),
    /// True where there is such a parameter.
    Presence(&'static str),
    /// A parameter, as a number.
    Number(&'static str),
    /// It is always this.
    Constant(i64),
}

/// Which fields come from a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallBody {
    /// None; it isn't read.
    Ignored,
    /// Those.
    Fields(&'static [&'static str]),
    /// Those, each as the field that is named after it.
    Renamed(&'static [(&'static str, &'static str)]),
    /// All of its fields.
    All,
    /// It is the value of a field.
    In(&'static str),
    /// It is the one element of a field that is a list.
    OneOf(&'static str),
    /// The same; one of its fields must be the parameter of the path, and a mistake is reported under the name that is given last.
    OneNamed(&'static str, &'static str, &'static str),
    /// It has a job, and these fields.
    Job(JobUse, &'static [&'static str]),
    /// It is bytes, the value of a field.
    Raw(&'static str),
}

/// What a job is sent for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobUse {
    /// It is to run.
    Register,
    /// What would be done is asked.
    Plan,
    /// Its mistakes are asked.
    Validate,
}

/// What a call needs beside fields from query, body and path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestRule {
    /// Nothing.
    Plain,
    /// The query says what is done with a variable: `cas`, `lock-acquire`, `lock-renew`, `lock-release`.
    Variable,
    /// The name in the path is also that of the tag.
    VersionTag,
    /// Secrets for storage, from a header.
    Secrets,
    /// The same. The query must name the node whose claim ends.
    Claim,
}

/// What of an answer is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerPart {
    /// All of it.
    Whole,
    /// One field.
    Field(&'static str),
    /// One field, a list; nil is an empty one.
    List(&'static str),
    /// The first element of the list that one field is; nothing where it is empty.
    First(&'static str),
    /// One field; where it is nil, the answer is 404 with this text.
    Found(&'static str, &'static str),
    /// Nothing.
    Nothing,
}

/// How an answer, or an error, is shown otherwise than servers have given it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseRule {
    /// As it is.
    Plain,
    /// Of the object, or of each in the list, these fields are left out where they are nil or 0.
    OmitEmpty(&'static [&'static str]),
    /// Signed identities of tasks are left out.
    OmitIdentities,
    /// A variable: a conflict is 409, a removal 204.
    Variable,
    /// An allocation that servers don't know is 404 in other words.
    KnownAlloc,
    /// A node: without its secret, and with whether it drains.
    Node,
    /// Versions of a job: none at all is 404.
    Versions,
    /// The source of a job: its variables are escaped where they are kept.
    Submission,
    /// How servers are, in words; 429 where one is not healthy.
    ServerHealth,
    /// Keys as a JWK set.
    PublicKeys,
    /// Where keys are, as a document of OpenID Connect; none is 404.
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

/// A call that changes something. All of its answer is shown.
pub(super) const fn write(method: &'static str, body: CallBody) -> Call {
    Call { body, ..read(method, AnswerPart::Whole) }
}

/// A call that removes something. Nothing of its answer is shown.
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

    pub(super) const fn asked_as(self, request: RequestRule) -> Self {
        Self { request, ..self }
    }

    pub(super) const fn shown_as(self, response: ResponseRule) -> Self {
        Self { response, ..self }
    }
}
