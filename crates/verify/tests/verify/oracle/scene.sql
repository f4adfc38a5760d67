-- Every kind of page that PostgreSQL has of its own, in use: split, vacuumed,
-- deleted from, truncated.
CREATE TABLE plain (id int PRIMARY KEY, filler text);
INSERT INTO plain SELECT i, md5(i::text) FROM generate_series(1, 20000) i;
CREATE INDEX plain_hash ON plain USING hash (filler);
CREATE INDEX plain_brin ON plain USING brin (id) WITH (pages_per_range = 4);
CREATE INDEX plain_filler ON plain (filler);
DELETE FROM plain WHERE id % 3 = 0;
DELETE FROM plain WHERE id BETWEEN 4000 AND 9000;
UPDATE plain SET filler = filler || 'x' WHERE id % 100 = 1;
VACUUM plain;
INSERT INTO plain SELECT i, md5(i::text) FROM generate_series(30000, 33000) i;
UPDATE plain SET filler = 'hot' WHERE id % 50 = 2;

CREATE TABLE shapes (id int, p point, tags int[], words tsvector, word text);
INSERT INTO shapes
SELECT i, point(i % 331, i % 173), ARRAY[i % 7, i % 111, i], to_tsvector('simple', md5(i::text) || ' ' || i % 13),
       md5(i::text)
FROM generate_series(1, 6000) i;
CREATE INDEX shapes_gist ON shapes USING gist (p);
CREATE INDEX shapes_spgist ON shapes USING spgist (p);
CREATE INDEX shapes_spgist_word ON shapes USING spgist (word);
CREATE INDEX shapes_gin ON shapes USING gin (tags);
CREATE INDEX shapes_gin_words ON shapes USING gin (words) WITH (fastupdate = on);
INSERT INTO shapes
SELECT i, point(i % 7, i), ARRAY[i % 5, i], to_tsvector('simple', md5(i::text)), 'word ' || i
FROM generate_series(6001, 9000) i;
DELETE FROM shapes WHERE id < 3000;
VACUUM shapes;
INSERT INTO shapes
SELECT i, point(i % 11, i), ARRAY[i % 5, i], to_tsvector('simple', md5(i::text)), 'again ' || i
FROM generate_series(10000, 11000) i;
UPDATE shapes SET tags = tags || 5 WHERE id % 40 = 0;

CREATE TABLE big (id int PRIMARY KEY, data text);
ALTER TABLE big ALTER data SET STORAGE EXTERNAL;
INSERT INTO big SELECT i, repeat(md5(i::text), 300) FROM generate_series(1, 150) i;
DELETE FROM big WHERE id % 4 = 0;
VACUUM big;

CREATE SEQUENCE counter INCREMENT 3;
SELECT nextval('counter') FROM generate_series(1, 50);
CREATE SEQUENCE untouched;

CREATE TABLE parts (id int, v text) PARTITION BY RANGE (id);
CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (1000);
CREATE TABLE parts_high PARTITION OF parts FOR VALUES FROM (1000) TO (3000);
CREATE INDEX ON parts (id);
INSERT INTO parts SELECT i, 'v' FROM generate_series(0, 2000) i;
UPDATE parts SET id = id + 1000 WHERE id BETWEEN 500 AND 600;

CREATE TABLE shrunk (id int, filler text);
INSERT INTO shrunk SELECT i, md5(i::text) FROM generate_series(1, 20000) i;
DELETE FROM shrunk WHERE id > 5000;
VACUUM (FREEZE, TRUNCATE) shrunk;

CREATE UNLOGGED TABLE volatile (id serial PRIMARY KEY, v int[]);
CREATE INDEX volatile_gin ON volatile USING gin (v);
CREATE INDEX volatile_hash ON volatile USING hash (id);
INSERT INTO volatile (v) SELECT ARRAY[i] FROM generate_series(1, 1000) i;

CREATE TABLE locked (id int PRIMARY KEY, v int);
INSERT INTO locked SELECT i, 0 FROM generate_series(1, 500) i;
BEGIN;
SELECT count(*) FROM (SELECT * FROM locked WHERE id < 100 FOR SHARE) s;
SAVEPOINT one;
UPDATE locked SET v = 1 WHERE id < 50;
ROLLBACK TO one;
UPDATE locked SET v = 2 WHERE id BETWEEN 40 AND 60;
COMMIT;
BEGIN;
UPDATE locked SET v = 3 WHERE id > 400;
ROLLBACK;

CREATE TABLE rewritten (id int PRIMARY KEY, v text);
INSERT INTO rewritten SELECT i, md5(i::text) FROM generate_series(1, 3000) i;
CLUSTER rewritten USING rewritten_pkey;
DELETE FROM rewritten WHERE id % 2 = 0;
VACUUM FULL rewritten;
REINDEX TABLE rewritten;
TRUNCATE locked;
INSERT INTO locked SELECT i, 0 FROM generate_series(1, 500) i;
