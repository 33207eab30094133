package pglock

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/distlock/distlock/driver"
	"github.com/distlock/distlock/internal/unsent"
	"github.com/jackc/pgx/v5/pgconn"
)

// Codes of errors, as in appendix A of PostgreSQL's manual.
const (
	badLogin           = "28000" // no such role, or pg_hba.conf refuses it
	badPassword        = "28P01"
	noDatabase         = "3D000"
	noSchema           = "3F000"
	noTable            = "42P01"
	noColumn           = "42703"
	noRights           = "42501"
	noSetting          = "42704"
	noStatement        = "26000"
	badSetting         = "22023"
	duplicateTable     = "42P07"
	duplicateType      = "42710"
	duplicateKey       = "23505"
	duplicateStatement = "42P05"
	readOnly           = "25006"
	conflict           = "40001"
	deadlock           = "40P01"
	tooLong            = "22001"
	outOfRange         = "22003"
	divisionByZero     = "22012"
	badText            = "22021"
	idleTooLong        = "57P05"
	shuttingDown       = "57P01"
	lockTimeout        = "55P03"
	queueFull          = "54000" // and other exceeded limits
	tooMany            = "53300" // connections
)

// sqlState returns the SQLSTATE of an error of any driver; empty if it has none.
func sqlState(err error) string {
	if e := (interface{ SQLState() string })(nil); errors.As(err, &e) {
		return e.SQLState()
	}
	return ""
}

// causes are what errors mean to a user.
var causes = map[string]string{
	badLogin:    "the user is not let in: check the name, and pg_hba.conf on the server",
	badPassword: "the user is not let in: the password is wrong, or has expired (ALTER ROLE … VALID UNTIL)",
	noDatabase:  "the database does not exist",
	noTable:     "the table is gone",
	noColumn:    "the table was changed",
	noRights:    "the user lacks a right",
	noSetting:   "a parameter of the URL is neither distlock's, pgx's nor the server's",
	badSetting:  "a parameter of the URL has a value that the server does not take",
	tooLong:     "a value is too long for its column",
	outOfRange:  "a number is too great for its column",
	badText:     "a text has bytes that the server does not take, such as 0",
	queueFull:   "this is more than the server's limits allow",
	readOnly:    "the server can't be written: it is a replica, or transactions are read-only",
}

// wrongRequests are errors of what was sent. All others are of the server's state, which may change: even a table or a
// right may come back.
var wrongRequests = []string{tooLong, outOfRange, badText}

// explained is an error of the server on one line, with its cause if that is known.
type explained struct {
	why string
	err error
}

func (e *explained) Error() string {
	text := oneLine(e.err.Error())
	if e.why == "" {
		return text
	}
	return e.why + ": " + text
}

func (e *explained) Unwrap() error { return e.err }

// wording is what pgx says besides the server or the system, and that there is no TLS if that was tried first.
var wording = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile("failed to connect to `[^`]*`:\\s*|hostname resolving error: |" +
		`\S+ \([^)]*\): (?:dial error: |tls error: server refused TLS connection\n\s*)| \([^)]*\): (?:server|tls) error`)
})

// oneLine joins lines, without those that repeat the one before: pgx has a line for each address, with and without TLS.
func oneLine(text string) string {
	lines := strings.Split(wording().ReplaceAllString(text, ""), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	return strings.Join(slices.Compact(lines), "; ")
}

// explain adds its cause to an error of the server.
func explain(err error) error {
	if err == nil || driver.Final(err) || errors.As(err, new(*explained)) {
		return err
	}
	e := &explained{cause(err), err}
	if slices.Contains(wrongRequests, sqlState(err)) {
		return fmt.Errorf("%w: %w", driver.ErrInvalid, e)
	}
	return e
}

// refusals begin the codes of errors that come of who asks, or of what there is: the whole statement had no effect.
var refusals = []string{badLogin[:2], noDatabase[:2], noSchema[:2], noTable[:2], readOnly}

// explainStatement is explain for a statement that is a transaction of its own. It matches ErrUnsent if the statement was not
// sent, or was refused as a whole.
func explainStatement(err error) error {
	refused := func(code string) bool { return strings.HasPrefix(sqlState(err), code) }
	if errors.As(err, new(*pgconn.ConnectError)) || slices.ContainsFunc(refusals, refused) {
		err = driver.Unsent(err)
	}
	return unsent.Mark(explain(err))
}

// explainOpen is explain for Open: ErrInvalid if the user must change something before it can work.
func explainOpen(err error) error {
	if err == nil || driver.Final(err) || cause(err) == "" || lostStatement(err) {
		return explain(err)
	}
	return fmt.Errorf("%w: %w", driver.ErrInvalid, explain(err))
}

// cause returns what an error means to a user; empty if the server says it.
func cause(err error) string {
	switch {
	case lostStatement(err):
		return fmt.Sprintf("prepared statements get lost, as behind a pooler in transaction mode: say pooler=%s (Options.Pooler)", TransactionPooler)
	case strings.Contains(err.Error(), "password authentication failed"): // PgBouncer has one code for all its refusals
		return causes[badPassword]
	case strings.Contains(err.Error(), "unsupported startup parameter"):
		return "a parameter of the URL is not known to the pooler (ignore_startup_parameters)"
	}
	return causes[sqlState(err)]
}

func lostStatement(err error) bool {
	state := sqlState(err)
	return state == noStatement || state == duplicateStatement
}

// explainConfig returns pgx's complaint about a URL.
func explainConfig(err error) error {
	return fmt.Errorf("%w: URL: %s", driver.ErrInvalid, configProblem(err))
}

// configProblem returns pgx's complaint without the URL that it quotes.
func configProblem(err error) string {
	why := err.Error()
	if i := strings.LastIndex(why, "`: "); i >= 0 {
		why = why[i+len("`: "):]
	}
	return why
}
