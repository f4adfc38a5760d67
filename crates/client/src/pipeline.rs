//! Statements sent one after the other without waiting for each one's answer.

use std::collections::VecDeque;
use std::ffi::CString;
use std::fmt;
use std::time::Instant;

use crate::connection::{Connection, Failure, Link, Rows, c_string, refusal, size};
use crate::error::Step;
use crate::libpq::AnswerKind;
use crate::request::Request;
use crate::sql::texts;
use crate::value::ToText;
use crate::{CANCEL_PATIENCE, ClientError, MOST_ANSWER, Result};

/// Statements of so many bytes are sent while more are given; fewer go together, as one message.
const SEND_FROM: usize = 32 * 1024;

/// What a statement of a pipeline has done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answered {
    pub rows: Rows,
    /// How many rows it inserted, updated, deleted or returned.
    pub affected: u64,
}

/// A pipeline: the server works off its statements in their order, and skips those after one that
/// failed. Without `BEGIN` and `COMMIT` among them all are one transaction. COPY is not possible.
///
/// Dropping it before [`Pipeline::finish`] makes the connection unusable: nobody can know which of
/// the statements the server has done.
pub struct Pipeline<'a> {
    connection: &'a mut Connection,
    /// What the server has not answered yet, oldest first.
    waiting: VecDeque<Expected>,
    answers: Vec<Answered>,
    /// The answer that arrives.
    answer: Answered,
    bytes: usize,
    /// Bytes of statements since those before were sent.
    unsent: usize,
    /// The first error, and the place of its statement.
    refused: Option<(usize, ClientError)>,
    synchronized: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Statement,
    Sync,
}

impl Connection {
    /// Begins a pipeline.
    pub fn pipeline(&mut self) -> Result<Pipeline<'_>> {
        if let Some(reason) = &self.link.broken {
            return Err(ClientError::Lost(reason.clone()));
        }
        self.link
            .connection
            .enter_pipeline()
            .map_err(ClientError::Lost)?;
        Ok(Pipeline {
            connection: self,
            waiting: VecDeque::new(),
            answers: Vec::new(),
            answer: Answered::default(),
            bytes: 0,
            unsent: 0,
            refused: None,
            synchronized: false,
        })
    }
}

impl Pipeline<'_> {
    /// Sends one statement with parameters; see [`Connection::query_with`].
    pub fn query(&mut self, sql: &str, parameters: &[&dyn ToText]) -> Result<()> {
        self.send(&Request::Parameters {
            sql: c_string(sql)?,
            values: texts(parameters)?,
        })
    }

    /// Prepares one statement; see [`Connection::prepare`].
    pub fn prepare(&mut self, name: &str, sql: &str) -> Result<()> {
        self.send(&Request::Prepare {
            name: c_string(name)?,
            sql: c_string(sql)?,
        })
    }

    /// Sends a prepared statement; see [`Connection::query_prepared`].
    pub fn query_prepared(&mut self, name: &str, parameters: &[&dyn ToText]) -> Result<()> {
        self.send(&Request::Prepared {
            name: c_string(name)?,
            values: texts(parameters)?,
        })
    }

    /// Sends a prepared statement; see [`Connection::change_prepared`].
    pub fn change_prepared(&mut self, name: &str, values: Vec<Option<CString>>) -> Result<()> {
        self.send(&Request::Prepared {
            name: c_string(name)?,
            values,
        })
    }

    /// Like [`Pipeline::change_prepared`], with values in the binary format of the parameters' types, none of
    /// which is null.
    pub fn change_binary(&mut self, name: &str, values: Vec<Vec<u8>>) -> Result<()> {
        self.send(&Request::Binary {
            name: c_string(name)?,
            values,
        })
    }

    /// Waits until the server has answered all statements so far: what it has done stays one
    /// transaction with what follows. None if it has refused one; [`Pipeline::finish`] says why.
    /// Takes at most the patience.
    pub fn answered(&mut self) -> Result<Option<&[Answered]>> {
        let asked = self.link().connection.ask_for_answers();
        asked.map_err(ClientError::Lost)?;
        let patience = self.connection.patience();
        let deadline = Instant::now() + patience;
        let read = self.flush(deadline).and_then(|()| self.read(deadline));
        read.map_err(|failure| self.said(failure.into_error("run a pipeline", patience)))?;
        Ok(self.refused.is_none().then_some(&self.answers[..]))
    }

    /// Ends the pipeline: waits until the server has answered all statements, and returns one
    /// answer for each, or the error of the first that failed. Takes at most the patience.
    pub fn finish(self) -> Result<Vec<Answered>> {
        self.finish_or_place().map_err(|(_, error)| error)
    }

    /// Like [`Pipeline::finish`]; an error comes with the place of its statement, from 0.
    pub fn finish_or_place(mut self) -> std::result::Result<Vec<Answered>, (usize, ClientError)> {
        let patience = self.connection.patience();
        let ended = self.end(Instant::now() + patience);
        if matches!(ended, Err(Failure::TimedOut)) {
            self.cancel();
        }
        ended.map_err(|failure| {
            let place = self.answers.len();
            (
                place,
                self.said(failure.into_error("run a pipeline", patience)),
            )
        })?;
        match self.refused.take() {
            Some(refused) => Err(refused),
            None => Ok(std::mem::take(&mut self.answers)),
        }
    }

    /// The error of a lost connection: the server's last error, which says why it ends the
    /// connection, says more than that it is lost.
    fn said(&mut self, error: ClientError) -> ClientError {
        match (error, self.refused.take()) {
            (ClientError::Lost(_), Some((_, ClientError::Refused(refusal)))) => {
                ClientError::Ended(refusal)
            }
            (error, _) => error,
        }
    }

    fn link(&mut self) -> &mut Link {
        &mut self.connection.link
    }

    /// Takes a request, and sends those that it has if they are many. Meanwhile it reads answers: a
    /// server that cannot send does not read.
    fn send(&mut self, request: &Request) -> Result<()> {
        let taken = self.link().connection.send_in_pipeline(request);
        taken.map_err(ClientError::Lost)?;
        self.waiting.push_back(Expected::Statement);
        self.unsent += request.size();
        if self.unsent < SEND_FROM {
            return Ok(());
        }
        let patience = self.connection.patience();
        let flushed = self.flush(Instant::now() + patience);
        flushed.map_err(|failure| {
            self.said(failure.into_error("take a pipeline's statements", patience))
        })
    }

    fn flush(&mut self, deadline: Instant) -> Result<(), Failure> {
        self.unsent = 0;
        while self.link().connection.flush().map_err(ClientError::Lost)? {
            self.wait(true, deadline)?;
            self.collect()?;
        }
        Ok(())
    }

    fn wait(&mut self, unsent: bool, deadline: Instant) -> Result<(), Failure> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Failure::TimedOut);
        }
        match self.link().poll(unsent, None, left)?.input {
            true => Ok(self.link().take()?),
            false => Ok(()),
        }
    }

    fn end(&mut self, deadline: Instant) -> Result<(), Failure> {
        let sent = self.link().connection.sync_pipeline();
        sent.map_err(ClientError::Lost)?;
        self.waiting.push_back(Expected::Sync);
        self.flush(deadline)?;
        self.drain(deadline)
    }

    /// Reads all answers.
    fn read(&mut self, deadline: Instant) -> Result<(), Failure> {
        loop {
            self.collect()?;
            if self.waiting.is_empty() {
                return Ok(());
            }
            self.wait(false, deadline)?;
        }
    }

    /// Reads all answers, and leaves the pipeline.
    fn drain(&mut self, deadline: Instant) -> Result<(), Failure> {
        self.read(deadline)?;
        let left = self.link().connection.exit_pipeline();
        left.map_err(ClientError::Lost)?;
        self.synchronized = true;
        Ok(())
    }

    /// Asks the server to stop, so that the connection can be used again.
    fn cancel(&mut self) {
        let asked = self
            .connection
            .canceller()
            .map(|canceller| canceller.cancel());
        if let Ok(Ok(())) = asked {
            let _ = self.drain(Instant::now() + CANCEL_PATIENCE);
        }
    }

    /// Reads the answers that have arrived.
    fn collect(&mut self) -> Result<()> {
        while !self.waiting.is_empty() && !self.link().connection.is_busy() {
            let Some(answer) = self.link().connection.next_answer() else {
                self.statement_has_ended();
                continue;
            };
            match answer.kind() {
                // The first statement's rows come one by one if those of the statement before the pipeline
                // did: libpq ends that mode between statements of a pipeline, not at its beginning.
                kind @ (AnswerKind::Rows | AnswerKind::Row) => {
                    let rows = answer.rows();
                    self.bytes += size(&rows);
                    self.answer.rows.extend(rows);
                    if kind == AnswerKind::Rows {
                        self.answer.affected = answer.affected();
                    }
                }
                AnswerKind::Command => self.answer.affected = answer.affected(),
                AnswerKind::Skipped => {}
                AnswerKind::Sync => {
                    self.waiting.pop_front();
                }
                AnswerKind::Error => {
                    let place = self.answers.len();
                    let what = format!("run statement {} of a pipeline", place + 1);
                    let error = refusal(&answer, Step::Query, &what);
                    self.refused.get_or_insert((place, error));
                    if self.connection.is_closed() {
                        return Err(ClientError::Lost("the server has ended it".to_owned()));
                    }
                }
                AnswerKind::CopyBoth | AnswerKind::CopyOne(_) | AnswerKind::Other => {
                    return Err(ClientError::Protocol("a copy in a pipeline".to_owned()));
                }
            }
            if self.bytes > MOST_ANSWER {
                return Err(ClientError::Protocol(format!(
                    "over {} MB of answers to a pipeline",
                    MOST_ANSWER / (1024 * 1024)
                )));
            }
        }
        Ok(())
    }

    fn statement_has_ended(&mut self) {
        if self.waiting.front() == Some(&Expected::Statement) {
            self.waiting.pop_front();
            self.bytes += size_of::<Answered>();
            self.answers.push(std::mem::take(&mut self.answer));
        }
    }
}

impl Drop for Pipeline<'_> {
    fn drop(&mut self) {
        if !self.synchronized {
            self.connection
                .link
                .broken
                .get_or_insert_with(|| "a pipeline was not finished".to_owned());
        }
    }
}

impl fmt::Debug for Pipeline<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline")
            .field("waiting", &self.waiting.len())
            .finish_non_exhaustive()
    }
}
