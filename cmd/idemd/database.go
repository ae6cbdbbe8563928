package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idemd/idemd/store"
	"github.com/idemd/idemd/store/sqlstore"
)

const (
	defaultRegion = "local"
	// openTime is how long a database has to answer a process that starts.
	openTime = 15 * time.Second
)

// databaseFlags say which database the keys are in.
type databaseFlags struct {
	Store  *string `placeholder:"URL" help:"Database of the keys, PostgreSQL or CockroachDB: postgres://USER@HOST:PORT/DATABASE. A password is better in IDEMD_STORE, PGPASSWORD or ~/.pgpass than on the command line."`
	Region string  `default:"local" placeholder:"NAME" help:"The region whose keys these are: with --store, part of the names of its tables; for serve with --topology, which of its regions this server is of (${default})."`
}

// check refuses what no database can be found by.
func (f *databaseFlags) check() error {
	if f.Store == nil {
		return usageError("--store is missing: name the database, postgres://USER@HOST:PORT/DATABASE")
	}
	if strings.TrimSpace(*f.Store) == "" { // a secret that is not there must not mean another store
		return usageError("--store is empty: name the database, postgres://USER@HOST:PORT/DATABASE, or leave it out")
	}
	if err := sqlstore.CheckRegion(f.Region); err != nil {
		return usageError("--%w", err)
	}
	if kind, _, isURL := strings.Cut(*f.Store, "://"); isURL && scheme.MatchString(kind) && kind != "postgres" && kind != "postgresql" {
		return usageError("--store: a URL that begins with %s:// is of no database that idemd can use: these are PostgreSQL and CockroachDB, and the URLs of both begin with postgres://", kind)
	}
	config, err := pgxpool.ParseConfig(*f.Store)
	if file := (*fs.PathError)(nil); errors.As(err, &file) {
		return usageError("--store names a file that cannot be read: %w", file)
	}
	if err != nil {
		return notLike(unparsed(err))
	}
	if ambiguous(*f.Store) || strings.Contains(config.ConnConfig.Host, "@") {
		return notLike("one @ stands before the host, and nowhere else")
	}
	return nil
}

// scheme is how a URL begins; a password is not all there is before it.
var scheme = regexp.MustCompile(`^[a-z][a-z0-9+.-]{1,15}$`)

func notLike(reason string) error {
	return usageError("--store is not like postgres://USER@HOST:PORT/DATABASE (characters like @ / : ? in a password are written %%40 %%2F %%3A %%3F): %s", reason)
}

// ambiguous says that a part of what may be meant as a password would be taken for a host, a
// database or a setting, all of which are shown.
func ambiguous(dsn string) bool {
	_, rest, isURL := strings.Cut(dsn, "://")
	if !isURL || !strings.HasPrefix(dsn, "postgres") {
		return false
	}
	first := strings.IndexAny(rest, "@/?")
	return strings.Count(rest, "@") > 1 || strings.Contains(rest, "@") && rest[first] != '@'
}

// unparsed says what is wrong with a connection string, without any of its text.
func unparsed(err error) string {
	var refused *pgconn.ParseConfigError
	if !errors.As(err, &refused) {
		return "it cannot be read"
	}
	text := refused.Error()
	if inner := errors.Unwrap(refused); inner != nil {
		text = strings.TrimSuffix(text, " ("+inner.Error()+")")
	}
	return text[strings.LastIndex(text, "`: ")+len("`: "):]
}

// place is where the database is, without the password.
func (f *databaseFlags) place() string {
	config, err := pgconn.ParseConfig(*f.Store)
	if err != nil {
		return "?" // check has refused it
	}
	hosts := []string{address(config.Host, config.Port)}
	for _, other := range config.Fallbacks {
		if host := address(other.Host, other.Port); !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	name := config.Database
	if name == "" {
		name = config.User // what the server takes then
	}
	return fmt.Sprintf("%s at %s as %s", name, strings.Join(hosts, ", "), config.User)
}

func address(host string, port uint16) string { return net.JoinHostPort(host, strconv.Itoa(int(port))) }

// openStore opens the store in the database.
func (f *databaseFlags) openStore(ctx context.Context, opts sqlstore.Options) (*sqlstore.Store, error) {
	return opened(ctx, f, func(ctx context.Context) (*sqlstore.Store, error) {
		opts.Region = f.Region
		return sqlstore.Open(ctx, *f.Store, opts)
	})
}

// noticeOf is what an operator should see to although the store answers. That it does not
// answer, its health says.
func noticeOf(db *sqlstore.Store) func() string {
	return func() string {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		err := db.Health(ctx)
		if err == nil || errors.Is(err, store.ErrUnavailable) || ctx.Err() != nil {
			return ""
		}
		return err.Error()
	}
}

// opened calls open, which has a bounded time, and explains its error.
func opened[T any](ctx context.Context, f *databaseFlags, open func(context.Context) (T, error)) (T, error) {
	bounded, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	got, err := open(bounded)
	if err != nil {
		var none T
		return none, f.explain(err)
	}
	return got, nil
}

// explain says where an error comes from and what to do about it.
func (f *databaseFlags) explain(err error) error {
	reason, advice := err.Error(), "" // of ErrSchemaOlder and ErrSchemaNewer the text says what to do
	var (
		answered *pgconn.PgError
		dialled  *net.OpError
		lookedUp *net.DNSError
	)
	switch {
	case errors.Is(err, sqlstore.ErrSchemaOlder):
		reason += " with the same --store, then start this again"
	case errors.Is(err, sqlstore.ErrRights): // says what to run
	case errors.Is(err, sqlstore.ErrNoSuchRegion):
		advice = "name one of these with --region or IDEMD_REGION (a recovery is of all of them); if it is to be a new one, make its tables first: idemd migrate up with that --region, or serve it with a --topology that names it"
	case errors.As(err, &answered):
		reason, advice = answered.Message, adviceFor(answered.Code)
	case errors.As(err, &lookedUp):
		reason, advice = lookedUp.Error(), "check the host's name"
	case errors.As(err, &dialled):
		reason, advice = dialled.Error(), "is the database running, and reachable from here?"
	case errors.Is(err, context.DeadlineExceeded):
		reason, advice = fmt.Sprintf("no answer within %v", openTime), "is the database reachable from here?"
	}
	if advice != "" {
		reason += "; " + advice
	}
	return &databaseError{"--store: " + f.place() + ": " + reason, err}
}

// databaseError has a text of its own: the cause's may be many lines about one thing.
type databaseError struct {
	text  string
	cause error
}

func (e *databaseError) Error() string { return e.text }
func (e *databaseError) Unwrap() error { return e.cause }

// adviceFor is what to do about what the database refuses, by its SQLSTATE.
func adviceFor(code string) string {
	switch code {
	case "28P01", "28000": // invalid_password, invalid_authorization_specification
		return "check user and password, in --store, PGPASSWORD or ~/.pgpass, and what pg_hba.conf lets in"
	case "3D000": // invalid_catalog_name
		return "create it (createdb), then run `idemd migrate up` with the same --store"
	case "42501": // insufficient_privilege
		return "migrate and serve as one user, who owns the database or was told GRANT USAGE, CREATE ON SCHEMA public: idemd makes and drops the tables of its buckets"
	case "25006": // read_only_sql_transaction
		return "name a server that can be written to"
	case "53300": // too_many_connections
		return "raise max_connections, or lower --store-conns of every replica"
	case "57P03": // cannot_connect_now
		return "try again in a moment"
	}
	return ""
}

// passwords are where a connection string has one: in a URL up to the last @, as a password
// may have some that are not written %40.
var passwords = regexp.MustCompile(`(\w://[^:/@\s]*:)\S*@|((?i:password)\s*=\s*)(?:'[^']*'|[^\s&]+)`)

// withoutPassword is a text without the passwords of the connection strings in it, as when
// one was put where it does not belong.
func withoutPassword(text string) string {
	return passwords.ReplaceAllStringFunc(text, func(found string) string {
		parts := passwords.FindStringSubmatch(found)
		if parts[1] != "" {
			return parts[1] + "xxxxx@"
		}
		return parts[2] + "xxxxx"
	})
}
