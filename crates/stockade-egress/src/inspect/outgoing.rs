//! What a judged request carries: its body, as far as a rule has to see it,
//! and the credentials that are bound to it.

use std::rc::Rc;

use bytes::Bytes;
use http::Response;
use http::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HeaderValue,
    TRANSFER_ENCODING,
};
use http::request::Parts;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use stockade_policy::network::judge::{Denial, GitAction, GitOperation};

use super::authority::Protocol;
use super::body::{self, Fault, RequestBody, RequestStream, ResponseBody, SpooledBody, Trailers};
use super::environment::Environment;
use super::exchange::{Judged, Session};
use super::graphql;
use super::message::{self, Scheme};
use super::refusal;
use crate::context::{denial, now_unix};
use crate::credential::{self, Applied, Outgoing, Scrubber, Transport, decode};
use crate::git::push::{Coding, Progress, PushFilter, Settings, Transport as GitTransport, Vetted};
use crate::git::report;
use crate::git::smart_http::{self, Access, HttpOperation, Kind, Service};

/// What becomes of a judged request.
pub enum Step {
    Send(Prepared),
    /// It is refused in its own protocol.
    Answer(Box<Response<ResponseBody>>),
}

/// A request that is complete but for the name of its host.
pub struct Prepared {
    pub body: RequestBody,
    /// Path and query.
    pub target: String,
    pub scrubber: Option<Scrubber>,
}

/// What the vault made of a request's head.
pub struct Attached {
    pub applied: Applied,
    pub target: String,
    pub scrubber: Option<Scrubber>,
}

/// A body on its way through the checks.
enum Held {
    Stream(Incoming),
    Whole(Bytes),
    Push(Vetted),
}

impl<E: Environment> Session<E> {
    /// Looks at the body as far as the rules demand and attaches credentials.
    pub(super) async fn prepare(
        &self,
        parts: &mut Parts,
        incoming: Incoming,
        judged: &Judged,
        fault: &Fault,
    ) -> Result<Step, Denial> {
        let permit = &judged.permit;
        if permit.strip_method_override {
            message::strip_method_override(&mut parts.headers);
        }
        // Hyper asks the client to go on when the body is first looked at.
        parts.headers.remove(EXPECT);
        if let (Some(declared), Some(max)) = (
            message::content_length(&parts.headers),
            permit.body_bytes_max,
        ) && declared > max
        {
            let reason = format!("the body has {declared} bytes, and the rule allows {max}");
            return Err(denial("body-too-large", reason));
        }
        let held = if permit.git {
            match self.git(parts, incoming, judged).await? {
                Ok(held) => held,
                Err(response) => return Ok(Step::Answer(response)),
            }
        } else if permit.graphql_read_only {
            Held::Whole(self.graphql(parts, incoming, judged).await?)
        } else {
            Held::Stream(incoming)
        };
        let Attached {
            applied,
            target,
            scrubber,
        } = self.attach(parts, judged).await?;
        let body = self.body(parts, held, applied, judged, fault).await?;
        Ok(Step::Send(Prepared {
            body,
            target,
            scrubber,
        }))
    }

    /// Lets the vault see the head, and prepares for the response.
    pub(super) async fn attach(
        &self,
        parts: &mut Parts,
        judged: &Judged,
    ) -> Result<Attached, Denial> {
        let vault = self.environment.vault();
        let destination = self.environment.destination();
        let mut path = judged.wanted.target.path().to_owned();
        let mut query = judged.wanted.target.query().map(str::to_owned);
        let applied = vault
            .apply(Outgoing {
                destination,
                transport: match self.scheme {
                    Scheme::Https => Transport::VerifiedTls,
                    Scheme::Http => Transport::Plaintext,
                },
                method: &parts.method,
                headers: &mut parts.headers,
                path: &mut path,
                query: &mut query,
                now_unix: now_unix(),
            })
            .await?;
        for (_, name) in &applied.credentials {
            self.environment.credential_used(name);
        }
        let scrubber = vault.scrubber(destination)?;
        if scrubber.is_some() {
            message::strip_ranges(&mut parts.headers);
            if parts.headers.contains_key(ACCEPT_ENCODING) {
                parts
                    .headers
                    .insert(ACCEPT_ENCODING, decode::ACCEPT_ENCODING);
            }
        }
        let target = match query {
            Some(query) => format!("{path}?{query}"),
            None => path,
        };
        Ok(Attached {
            applied,
            target,
            scrubber,
        })
    }

    /// The body as it is to be sent.
    async fn body(
        &self,
        parts: &mut Parts,
        held: Held,
        mut applied: Applied,
        judged: &Judged,
        fault: &Fault,
    ) -> Result<RequestBody, Denial> {
        let mut held = held;
        if let Some(plan) = applied.body.take() {
            let whole = match held {
                Held::Whole(whole) => whole,
                Held::Stream(incoming) => {
                    let max = limit(judged, credential::BODY_BYTES_MAX);
                    body::collect(incoming, max, &judged.serving).await?
                }
                Held::Push(_) => {
                    let reason = "a credential cannot be put into the body of a push";
                    return Err(denial("foreign-credential", reason));
                }
            };
            held = Held::Whole(plan.rewrite(&mut parts.headers, whole)?);
        }
        match held {
            Held::Whole(whole) => {
                applied.check_body(&whole)?;
                self.environment.uploaded(whole.len() as u64)?;
                Ok(RequestBody::whole(whole))
            }
            Held::Push(vetted) => {
                parts.headers.remove(CONTENT_ENCODING);
                let left = vetted.body.bytes();
                parts
                    .headers
                    .insert(CONTENT_LENGTH, HeaderValue::from(left));
                Ok(RequestBody::Spooled(Box::new(SpooledBody {
                    spool: vetted.body,
                    left,
                    meter: self.environment.meter(),
                    serving: Rc::clone(&judged.serving),
                    fault: fault.clone(),
                })))
            }
            Held::Stream(incoming) => {
                Ok(self.streamed(parts, incoming, applied, judged, fault.clone()))
            }
        }
    }

    fn streamed(
        &self,
        parts: &mut Parts,
        incoming: Incoming,
        applied: Applied,
        judged: &Judged,
        fault: Fault,
    ) -> RequestBody {
        if incoming.is_end_stream() {
            return RequestBody::empty();
        }
        let declared = message::content_length(&parts.headers);
        if self.upstream.protocol() == Protocol::Http1 && declared.is_none() {
            // Hyper adds it for some methods only.
            let chunked = HeaderValue::from_static("chunked");
            parts.headers.insert(TRANSFER_ENCODING, chunked);
        }
        let bound = self
            .environment
            .vault()
            .binds(self.environment.destination());
        RequestBody::Streamed(Box::new(RequestStream {
            incoming,
            meter: self.environment.meter(),
            serving: Rc::clone(&judged.serving),
            left: judged.permit.body_bytes_max,
            trailers: match bound {
                true => Trailers::Dropped,
                false => Trailers::Kept,
            },
            applied,
            fault,
        }))
    }

    async fn graphql(
        &self,
        parts: &Parts,
        incoming: Incoming,
        judged: &Judged,
    ) -> Result<Bytes, Denial> {
        if parts.headers.contains_key(CONTENT_ENCODING) {
            let reason = "the body of a GraphQL request must not be compressed where it is judged";
            return Err(denial("unscannable-encoding", reason));
        }
        let max = limit(judged, graphql::BODY_BYTES_MAX);
        let body = body::collect(incoming, max, &judged.serving).await?;
        let mut kinds = parts.headers.get_all(CONTENT_TYPE).iter();
        let kind = kinds.next().and_then(|kind| kind.to_str().ok());
        let parameters = &judged.wanted.parameters;
        let verdict = match kinds.next() {
            Some(_) => Err(graphql::NotReadOnly::ContentType),
            None => graphql::read_only(parts.method.as_str(), parameters, kind, &body),
        };
        verdict.map_err(|why| Denial {
            rule: judged.permit.rule.id.clone(),
            origin: judged.permit.rule.origin.clone(),
            ..denial(
                "graphql",
                format!("only GraphQL queries may be sent: {why}"),
            )
        })?;
        Ok(body)
    }

    /// Judges what git does. The inner error is an answer that git can read.
    async fn git(
        &self,
        parts: &Parts,
        incoming: Incoming,
        judged: &Judged,
    ) -> Result<Result<Held, Box<Response<ResponseBody>>>, Denial> {
        let kind = parts
            .headers
            .get(CONTENT_TYPE)
            .map(|kind| kind.to_str().unwrap_or("?"));
        let operation = smart_http::recognise(
            parts.method.as_str(),
            judged.wanted.target.path(),
            &judged.wanted.parameters,
            kind,
        );
        let (repository, kind) = match operation {
            Some(HttpOperation::Git { repository, kind }) => (repository, kind),
            Some(HttpOperation::Refused(why)) => return Err(denial("bad-request", why)),
            None => {
                let reason = "the rule permits git, and this is another request";
                return Err(denial("path", reason));
            }
        };
        if kind == Kind::Call(Service::ReceivePack) {
            return self.push(parts, incoming, repository, judged).await;
        }
        if let Some(access) = kind.access() {
            return match (self.git_access(repository, access, judged), kind) {
                (Ok(()), _) => Ok(Ok(Held::Stream(incoming))),
                (Err(denial), Kind::Advertisement(service)) => {
                    let message = report::message(&denial);
                    let (kind, body) = smart_http::advertisement_refusal(service, &message);
                    Ok(Err(Box::new(refusal::in_git(&denial, &kind, body))))
                }
                (Err(denial), _) => Err(denial),
            };
        }
        let max = limit(judged, smart_http::LFS_BODY_BYTES_MAX);
        let body = body::collect(incoming, max, &judged.serving).await?;
        let access = smart_http::lfs_batch(&body).ok_or_else(|| {
            denial(
                "bad-request",
                "the request to Git LFS says not what it does",
            )
        })?;
        self.git_access(repository, access, judged)?;
        Ok(Ok(Held::Whole(body)))
    }

    fn git_access(&self, repository: &str, access: Access, judged: &Judged) -> Result<(), Denial> {
        let operation = GitOperation {
            repository,
            action: match access {
                Access::Read => GitAction::Read,
                Access::Push => GitAction::PushAny,
            },
            over_ssh: false,
        };
        self.environment
            .judge_git(&operation, &judged.line)
            .map(drop)
    }

    /// Holds a push until all of it is known to be permitted.
    async fn push(
        &self,
        parts: &Parts,
        mut incoming: Incoming,
        repository: &str,
        judged: &Judged,
    ) -> Result<Result<Held, Box<Response<ResponseBody>>>, Denial> {
        let coding = match parts
            .headers
            .get(CONTENT_ENCODING)
            .map(HeaderValue::as_bytes)
        {
            None => Coding::Identity,
            Some(b"gzip" | b"x-gzip") => Coding::Gzip,
            Some(_) => {
                let reason = "the push is coded in a way that git does not use";
                return Err(denial("unscannable-encoding", reason));
            }
        };
        let settings = Settings {
            repository: repository.to_owned(),
            transport: GitTransport::Https,
            coding,
            needles: self.environment.needles()?,
            room: self.environment.room(),
        };
        let judge =
            |operation: &GitOperation<'_>| self.environment.judge_git(operation, &judged.line);
        let mut filter = PushFilter::new(settings, Box::new(judge));
        while let Some(frame) = incoming.frame().await {
            let frame =
                frame.map_err(|_| denial("bad-request", "the push ended before its end"))?;
            judged.serving.touch();
            if let Ok(piece) = frame.into_data()
                && filter.feed(&piece) == Progress::Complete
            {
                break;
            }
        }
        match filter.finish() {
            Ok(vetted) => Ok(Ok(Held::Push(vetted))),
            Err(refused) => match refused.answer {
                None => Err(refused.denial),
                Some(answer) => {
                    self.record(judged, &refused.denial);
                    let kind = "application/x-git-receive-pack-result";
                    let response = refusal::in_git(&refused.denial, kind, answer);
                    Ok(Err(Box::new(response)))
                }
            },
        }
    }
}

/// The smaller of two limits.
fn limit(judged: &Judged, bytes_max: usize) -> usize {
    let of_rule = judged.permit.body_bytes_max.unwrap_or(u64::MAX);
    usize::try_from(of_rule).map_or(bytes_max, |of_rule| of_rule.min(bytes_max))
}
