package pglock

import (
	"errors"
	"fmt"
	"strings"

	"github.com/distlock/distlock/driver"
)

// Codes of errors, as PostgreSQL's manual lists them in appendix A.
const (
	badProtocol    = "08P01"
	badLogin       = "28000" // no such role, or pg_hba.conf lets it in nowhere
	badPassword    = "28P01"
	noDatabase     = "3D000"
	noSchema       = "3F000"
	noTable        = "42P01"
	noColumn       = "42703"
	noRights       = "42501"
	noSetting      = "42704"
	badSetting     = "22023"
	duplicateTable = "42P07"
	duplicateType  = "42710"
	duplicateKey   = "23505"
	readOnly       = "25006"
	conflict       = "40001"
	deadlock       = "40P01"
	tooLong        = "22001"
	outOfRange     = "22003"
	badText        = "22021"
	idleTooLong    = "57P05"
	shuttingDown   = "57P01"
	queueFull      = "54000" // and whatever else is too much
)

// sqlState is the SQLSTATE of an error, whichever driver it comes from; empty if it has none.
func sqlState(err error) string {
	if e := (interface{ SQLState() string })(nil); errors.As(err, &e) {
		return e.SQLState()
	}
	return ""
}

// finalErrors says what can't get better by asking again.
var finalErrors = map[string]string{
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

// explain words what went wrong, and tells what can't get better by asking again.
func explain(err error) error {
	if err == nil || driver.Final(err) {
		return err
	}
	why, known := finalErrors[sqlState(err)]
	switch {
	case !known && strings.Contains(err.Error(), "password authentication failed"):
		why, known = finalErrors[badPassword], true // PgBouncer has one code for all its refusals
	case !known && strings.Contains(err.Error(), "unsupported startup parameter"):
		why, known = "a parameter of the URL is not known to the pooler (ignore_startup_parameters)", true
	}
	if !known {
		return err
	}
	return fmt.Errorf("%w: %s: %w", driver.ErrInvalid, why, err)
}

// explainCall is explain for a backend in use. A server that can't be written is then one
// that has a successor, or will be one itself.
func explainCall(err error) error {
	if sqlState(err) == readOnly {
		return fmt.Errorf("%s: %w", finalErrors[readOnly], err)
	}
	return explain(err)
}

// explainConfig says what pgx did not like about a URL, without the URL that it quotes.
func explainConfig(err error) error {
	why := err.Error()
	if i := strings.LastIndex(why, "`: "); i >= 0 {
		why = why[i+len("`: "):]
	}
	return fmt.Errorf("%w: URL: %s", driver.ErrInvalid, why)
}
