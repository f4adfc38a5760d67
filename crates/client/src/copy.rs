//! COPY in both directions.
//!
//! A copy runs within one string of statements, which the server works off without a round trip
//! for each. The string may hold several COPY, all in one direction, and other statements
//! before, between and after them: `BEGIN; TRUNCATE t; COPY t FROM STDIN; COMMIT`. Rows that
//! the other statements return are dropped.
//!
//! Memory: libpq holds one message of the server, a row of up to 1 GB in a COPY OUT, and of
//! what is sent at most [`MOST_SENT`] bytes.
//!
//! [`Connection::set_patience`] bounds each wait for the server, not the whole copy.

use std::ffi::CStr;
use std::fmt;
use std::time::{Duration, Instant};

use crate::connection::{Connection, Failure, refusal, simple};
use crate::error::Step;
use crate::libpq::{Answer, AnswerKind, Copied, CopyData};
use crate::{CANCEL_PATIENCE, ClientError, MOST_SENT, Result};

/// What the server is told about a copy that the client gives up.
const GIVEN_UP: &CStr = c"the client has given up the copy";

impl Connection {
    /// Runs statements whose first copy is a `COPY ... TO STDOUT`. Returns when it begins.
    pub fn copy_out(&mut self, sql: &str) -> Result<CopyOut<'_>> {
        let mut run = Run::begin(self, "copy rows out", false, sql)?;
        match run.next_copy()? {
            true => Ok(CopyOut { run }),
            false => Err(no_copy()),
        }
    }

    /// Runs statements whose first copy is a `COPY ... FROM STDIN`. Returns when it begins.
    pub fn copy_in(&mut self, sql: &str) -> Result<CopyIn<'_>> {
        let mut run = Run::begin(self, "copy rows in", true, sql)?;
        match run.next_copy()? {
            true => Ok(CopyIn { run }),
            false => Err(no_copy()),
        }
    }
}

fn no_copy() -> ClientError {
    ClientError::Protocol("no copy where one was expected".to_owned())
}

/// Rows that the server sends. Dropping it before all statements have ended cancels them.
pub struct CopyOut<'a> {
    run: Run<'a>,
}

impl CopyOut<'_> {
    /// True if this copy is in the binary format.
    pub fn is_binary(&self) -> bool {
        self.run.binary
    }

    /// The next message: one row, in the text format with its line's end, or the binary format's
    /// header or trailer. Waits for it. None once this copy has ended.
    #[expect(
        clippy::should_implement_trait,
        reason = "an error does not end it as it would an iterator"
    )]
    pub fn next(&mut self) -> Result<Option<CopyData>> {
        let mut deadline = None;
        while self.run.at == At::Data {
            match self.run.connection.link.connection.get_copy_data() {
                Copied::Data(data) => return Ok(Some(data)),
                Copied::NotYet => self.run.receive(&mut deadline)?,
                Copied::Failed(words) => return Err(self.run.lost(words)),
                Copied::Done => self.run.copy_has_ended()?,
            }
        }
        Ok(None)
    }

    /// How many rows the last copy had that has ended.
    pub fn rows(&self) -> u64 {
        self.run.rows
    }

    /// Goes on to the next copy; what is left of this one is dropped. False if there is none: all
    /// statements have ended.
    pub fn next_copy(&mut self) -> Result<bool> {
        while self.next()?.is_some() {}
        self.run.next_copy()
    }

    /// Drops what is left, waits until all statements have ended, and returns the number of rows of
    /// the last copy.
    pub fn finish(mut self) -> Result<u64> {
        while self.next_copy()? {}
        Ok(self.run.rows)
    }
}

/// Rows that the server takes. Dropping it before [`CopyIn::finish`] fails the copy, so that the
/// server keeps none of its rows.
pub struct CopyIn<'a> {
    run: Run<'a>,
}

impl CopyIn<'_> {
    /// True if this copy is in the binary format.
    pub fn is_binary(&self) -> bool {
        self.run.binary
    }

    /// Sends bytes of the copy, which may begin and end anywhere within rows. Waits until the
    /// operating system has taken them. Returns the server's error soon after the server has
    /// reported one.
    pub fn send(&mut self, data: &[u8]) -> Result<()> {
        for part in data.chunks(MOST_SENT) {
            if self.run.at != At::Data {
                return Err(no_copy());
            }
            self.look(Duration::ZERO, false)?;
            let deadline = Instant::now() + self.run.connection.patience();
            loop {
                let put = self.run.connection.link.connection.put_copy_data(part);
                match put.map_err(ClientError::Lost)? {
                    true => break,
                    false => self.wait(deadline)?,
                }
            }
            while self.flush()? {
                self.wait(deadline)?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<bool> {
        let flushed = self.run.connection.link.connection.flush();
        flushed.map_err(ClientError::Lost)
    }

    fn wait(&mut self, deadline: Instant) -> Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(self.run.timed_out());
        }
        self.look(left, true)
    }

    /// Waits for the socket. During a copy the server only speaks to report an error, or a notice,
    /// which libpq hands on by itself. It does not hand on an error before the client has ended the
    /// copy, so what is no notice ends it.
    fn look(&mut self, timeout: Duration, unsent: bool) -> Result<()> {
        let link = &mut self.run.connection.link;
        if !link.poll(unsent, None, timeout)?.input {
            return Ok(());
        }
        let before = link.connection.notices();
        let taken = link.take();
        link.connection.is_busy();
        if taken.is_ok() && link.connection.notices() != before {
            return Ok(());
        }
        self.run.give_up()?;
        match self.run.copy_has_ended() {
            Ok(()) => Err(no_copy()),
            Err(error) => Err(error),
        }
    }

    /// How many rows the last copy had that has ended.
    pub fn rows(&self) -> u64 {
        self.run.rows
    }

    /// Ends this copy, and goes on to the next one. False if there is none: all statements have
    /// ended.
    pub fn next_copy(&mut self) -> Result<bool> {
        if self.run.at == At::Data {
            let deadline = Instant::now() + self.run.connection.patience();
            loop {
                let put = self.run.connection.link.connection.put_copy_end(None);
                match put.map_err(ClientError::Lost)? {
                    true => break,
                    false => self.wait(deadline)?,
                }
            }
            self.run.copy_has_ended()?;
        }
        self.run.next_copy()
    }

    /// Ends this copy, waits until all statements have ended, and returns the number of rows. A
    /// further copy among the statements is an error.
    pub fn finish(mut self) -> Result<u64> {
        match self.next_copy()? {
            false => Ok(self.run.rows),
            true => Err(ClientError::Protocol(
                "another copy where none was expected".to_owned(),
            )),
        }
    }
}

/// How far a string of statements is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// A copy's data is sent or received.
    Data,
    /// Some statement before, between or after copies.
    Statement,
    /// All statements have ended.
    End,
}

/// Statements that run.
struct Run<'a> {
    connection: &'a mut Connection,
    what: &'static str,
    /// True if the client sends the data.
    inward: bool,
    at: At,
    binary: bool,
    rows: u64,
}

impl<'a> Run<'a> {
    fn begin(
        connection: &'a mut Connection,
        what: &'static str,
        inward: bool,
        sql: &str,
    ) -> Result<Self> {
        connection.link.send(&simple(sql)?)?;
        Ok(Self {
            connection,
            what,
            inward,
            at: At::Statement,
            binary: false,
            rows: 0,
        })
    }

    /// Goes on until a copy begins. False once all statements have ended.
    fn next_copy(&mut self) -> Result<bool> {
        while self.at != At::End {
            let Some(answer) = self.answer()? else {
                self.at = At::End;
                break;
            };
            if let AnswerKind::CopyOne(inward) = answer.kind() {
                if inward != self.inward {
                    return Err(ClientError::Protocol(format!(
                        "a copy in the other direction when asked to {}",
                        self.what
                    )));
                }
                self.binary = answer.is_binary();
                self.at = At::Data;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads the answer that ends a copy.
    fn copy_has_ended(&mut self) -> Result<()> {
        self.at = At::Statement;
        match self.answer()? {
            Some(answer) => {
                self.rows = answer.affected();
                Ok(())
            }
            None => {
                self.at = At::End;
                Err(ClientError::Protocol("a copy without an end".to_owned()))
            }
        }
    }

    /// The next answer. The server's error ends all statements.
    fn answer(&mut self) -> Result<Option<Answer>> {
        let deadline = Instant::now() + self.connection.patience();
        let answer = match self.connection.link.next_answer(deadline) {
            Ok(answer) => answer,
            Err(Failure::TimedOut) => return Err(self.timed_out()),
            Err(Failure::Other(error)) => return Err(self.broken(error)),
        };
        match answer {
            Some(answer) if answer.kind() == AnswerKind::Error => {
                let error = refusal(&answer, Step::Copy, self.what);
                Err(self.ended_with(error))
            }
            answer => Ok(answer),
        }
    }

    /// The error with which the server has ended the statements.
    fn ended_with(&mut self, error: ClientError) -> ClientError {
        let deadline = Instant::now() + CANCEL_PATIENCE;
        let drained = self.drain(deadline);
        self.at = At::End;
        match error {
            ClientError::Refused(refusal) if self.connection.is_closed() => {
                ClientError::Ended(refusal)
            }
            error => {
                if drained.is_err() {
                    self.connection.link.broken = Some(error.words());
                }
                error
            }
        }
    }

    fn lost(&mut self, words: String) -> ClientError {
        self.broken(ClientError::Lost(words))
    }

    fn broken(&mut self, error: ClientError) -> ClientError {
        self.at = At::End;
        self.connection.link.broken = Some(error.words());
        error
    }

    fn timed_out(&self) -> ClientError {
        Failure::TimedOut.into_error(self.what, self.connection.patience())
    }

    /// Waits for more of the server's data, up to a deadline that the first call sets.
    fn receive(&mut self, deadline: &mut Option<Instant>) -> Result<()> {
        let patience = self.connection.patience();
        let deadline = *deadline.get_or_insert_with(|| Instant::now() + patience);
        let link = &mut self.connection.link;
        let unsent = link.connection.flush().map_err(ClientError::Lost)?;
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(self.timed_out());
        }
        match link.poll(unsent, None, left)?.input {
            true => link.take(),
            false => Ok(()),
        }
    }

    /// Fails the copy in which the client sends data.
    fn give_up(&mut self) -> Result<()> {
        let put = self.connection.link.connection.put_copy_end(Some(GIVEN_UP));
        match put {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.lost("libpq has no room to end a copy".to_owned())),
            Err(words) => Err(self.lost(words)),
        }
    }

    /// Reads and drops what is left of all statements; no copy may go on.
    fn drain(&mut self, deadline: Instant) -> Result<(), Failure> {
        while let Some(answer) = self.connection.link.next_answer(deadline)? {
            match answer.kind() {
                AnswerKind::CopyOne(true) => self.give_up()?,
                AnswerKind::CopyOne(false) => self.drain_data(deadline)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn drain_data(&mut self, deadline: Instant) -> Result<(), Failure> {
        let mut until = Some(deadline);
        loop {
            match self.connection.link.connection.get_copy_data() {
                Copied::Data(_) if Instant::now() > deadline => return Err(Failure::TimedOut),
                Copied::Data(_) => {}
                Copied::NotYet => self.receive(&mut until)?,
                Copied::Done => return Ok(()),
                Copied::Failed(words) => return Err(ClientError::Lost(words).into()),
            }
        }
    }

    fn abandon(&mut self) -> Result<(), Failure> {
        let deadline = Instant::now() + CANCEL_PATIENCE;
        if self.at == At::Data && self.inward {
            self.give_up()?;
        } else {
            self.connection.canceller()?.cancel()?;
            if self.at == At::Data {
                self.drain_data(deadline)?;
            }
        }
        self.drain(deadline)
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        if self.at == At::End || self.connection.link.broken.is_some() {
            return;
        }
        if self.abandon().is_err() {
            let reason = format!("it did not stop in time when asked to {}", self.what);
            self.connection.link.broken = Some(reason);
        }
    }
}

impl fmt::Debug for CopyOut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopyOut").finish_non_exhaustive()
    }
}

impl fmt::Debug for CopyIn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopyIn").finish_non_exhaustive()
    }
}
